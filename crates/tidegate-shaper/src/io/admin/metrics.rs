//! The figures as Prometheus reads them.

use std::fmt::Write as _;

use crate::io::programs::{FlowTable, Report};
use crate::io::view::{ClassView, ShaperView, State};

/// A figure of a class, if it has one.
type Of = fn(&ClassView) -> Option<f64>;

/// Name, kind, what it is, and the figure.
const FAMILIES: [(&str, &str, &str, Of); 13] = [
    ("tidegate_shaper_class_rate_bits_per_second", "gauge", "Guaranteed.", |class| number(class.rate_bit_per_s)),
    ("tidegate_shaper_class_ceil_bits_per_second", "gauge", "At most.", |class| number(class.ceil_bit_per_s)),
    ("tidegate_shaper_class_sent_bytes_total", "counter", "Sent since the class was made.", |class| {
        number(class.figures?.sent_bytes_total)
    }),
    ("tidegate_shaper_class_sent_packets_total", "counter", "Sent since the class was made.", |class| {
        number(class.figures?.sent_packets_total)
    }),
    ("tidegate_shaper_class_backlog_bytes", "gauge", "Waiting in the kernel's queue.", |class| {
        number(class.figures?.backlog_bytes)
    }),
    ("tidegate_shaper_class_drops_total", "counter", "Dropped since the class was made.", |class| {
        number(class.figures?.drops_total)
    }),
    ("tidegate_shaper_class_overlimits_total", "counter", "Times that it had to wait for tokens.", |class| {
        number(class.figures?.overlimits_total)
    }),
    ("tidegate_shaper_class_window_bytes", "gauge", "Sum of the windows of its flows.", |class| {
        number(class.stats?.window_bytes)
    }),
    ("tidegate_shaper_class_flows", "gauge", "Flows that its window is divided among.", |class| {
        number(class.stats?.flows)
    }),
    ("tidegate_shaper_class_held_flows", "gauge", "TCP flows of it in the table.", |class| {
        number(class.stats?.held_flows)
    }),
    ("tidegate_shaper_class_unheld_flows_total", "counter", "TCP flows that found no room in the table.", |class| {
        number(class.stats?.unheld_flows_total)
    }),
    ("tidegate_shaper_class_rtt_p50_microseconds", "gauge", "Half of the round trips are shorter.", |class| {
        Some(class.stats?.rtt?.p50_us)
    }),
    ("tidegate_shaper_class_rtt_p99_microseconds", "gauge", "99 in 100 round trips are shorter.", |class| {
        Some(class.stats?.rtt?.p99_us)
    }),
];

/// A figure of a device's table of flows.
type TableFigure = fn(FlowTable) -> u64;
const TABLE: &[(&str, &str, &str, TableFigure)] = &[
    ("tidegate_shaper_device_flows", "gauge", "TCP flows in the programs' table.", |table| table.known),
    ("tidegate_shaper_device_flows_unheld_total", "counter", "TCP flows that found no room in the table.", |table| {
        table.unheld_total
    }),
    ("tidegate_shaper_device_flows_evicted_total", "counter", "Open flows that were forgotten for others.", |table| {
        table.evicted_total
    }),
];

#[expect(clippy::cast_precision_loss, reason = "Prometheus counts so")]
#[expect(clippy::unnecessary_wraps, reason = "figures may be absent")]
fn number(figure: u64) -> Option<f64> {
    Some(figure as f64)
}

/// The page.
pub(super) fn page(view: &ShaperView) -> String {
    let mut page = String::new();
    let mut line = |text: std::fmt::Arguments<'_>| {
        page.write_fmt(text).and_then(|()| page.write_char('\n')).expect("a string takes all that is written");
    };
    line(format_args!("# HELP tidegate_shaper_device_shaped Whether the device has its tree."));
    line(format_args!("# TYPE tidegate_shaper_device_shaped gauge"));
    for device in &view.devices {
        let is_shaped = u8::from(device.state == State::Shaped);
        line(format_args!("tidegate_shaper_device_shaped{{device=\"{}\"}} {is_shaped}", escaped(&device.id)));
    }
    line(format_args!(
        "# HELP tidegate_shaper_device_programs How the programs are attached, and where queues are read."
    ));
    line(format_args!("# TYPE tidegate_shaper_device_programs gauge"));
    for device in &view.devices {
        let Some(Report { hook, occupancy }) = device.programs else { continue };
        let labels = format_args!("device=\"{}\",hook=\"{hook}\",occupancy=\"{occupancy}\"", escaped(&device.id));
        line(format_args!("tidegate_shaper_device_programs{{{labels}}} 1"));
    }
    for (name, kind, help, figure) in TABLE {
        line(format_args!("# HELP {name} {help}"));
        line(format_args!("# TYPE {name} {kind}"));
        for device in &view.devices {
            let Some(table) = device.flow_table else { continue };
            line(format_args!("{name}{{device=\"{}\"}} {}", escaped(&device.id), figure(table)));
        }
    }
    for (name, kind, help, figure) in FAMILIES {
        line(format_args!("# HELP {name} {help}"));
        line(format_args!("# TYPE {name} {kind}"));
        for device in &view.devices {
            for class in &device.classes {
                let Some(figure) = figure(class) else { continue };
                let (device, class) = (escaped(&device.id), escaped(&class.name));
                line(format_args!("{name}{{device=\"{device}\",class=\"{class}\"}} {figure}"));
            }
        }
    }
    page
}

fn escaped(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::view::{DeviceView, Figures};
    use crate::machine::class_id::ClassId;
    use crate::machine::device::{Control, Mode};

    #[test]
    fn a_class_without_programs_has_only_the_kernels_figures() {
        let figures = Figures { drops_total: 7, ..Figures::default() };
        let class = ClassView {
            name: "a".to_owned(),
            classid: ClassId::new(0x71de, 0x20),
            parent: None,
            rate: None,
            ceil: None,
            rate_bit_per_s: 1_000_000_000,
            ceil_bit_per_s: 1_000_000_000,
            figures: Some(figures),
            stats: None,
        };
        let device = DeviceView {
            id: "eth0".to_owned(),
            name: "eth0".to_owned(),
            namespace: None,
            mode: Mode::Own,
            state: State::Shaped,
            problem: None,
            rate: None,
            control: Control::Integral,
            isolation: false,
            delay_us: 60,
            programs: Some(Report { hook: "tcx", occupancy: "tracepoint" }),
            flow_table: Some(FlowTable { known: 3, evicted_total: 1, unheld_total: 2 }),
            programs_problem: None,
            classes: vec![class],
        };
        let page = page(&ShaperView { devices: vec![device] });
        for line in [
            "tidegate_shaper_device_shaped{device=\"eth0\"} 1",
            "tidegate_shaper_device_programs{device=\"eth0\",hook=\"tcx\",occupancy=\"tracepoint\"} 1",
            "tidegate_shaper_class_rate_bits_per_second{device=\"eth0\",class=\"a\"} 1000000000",
            "tidegate_shaper_class_drops_total{device=\"eth0\",class=\"a\"} 7",
        ] {
            assert!(page.lines().any(|found| found == line), "{line} in {page}");
        }
        assert!(!page.contains("tidegate_shaper_class_window_bytes{"));
    }
}
