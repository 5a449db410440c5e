//! The figures of a running agent as tables.

use serde::Deserialize;
use serde_json::Value;

use crate::failure::Failure;
use crate::output::{Table, figure};

/// The part of the agent's answer that is shown.
#[derive(Debug, Deserialize)]
pub(super) struct Shown {
    pub(super) devices: Vec<Device>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Device {
    pub(super) id: String,
    namespace: Option<String>,
    mode: String,
    state: String,
    problem: Option<String>,
    control: String,
    isolation: bool,
    programs: Option<Report>,
    programs_problem: Option<String>,
    flow_table: Option<FlowTable>,
    pub(super) classes: Vec<Class>,
}

#[derive(Debug, Deserialize)]
struct Report {
    hook: String,
    occupancy: String,
}

#[derive(Debug, Deserialize)]
struct FlowTable {
    unheld_total: u64,
}

#[derive(Debug, Deserialize)]
pub(super) struct Class {
    pub(super) name: String,
    classid: String,
    rate: Option<String>,
    ceil: Option<String>,
    throughput_bit_per_s: Option<f64>,
    backlog_bytes: Option<u64>,
    drops_total: Option<u64>,
    window_bytes: Option<u64>,
    flows: Option<u64>,
    rtt: Option<Rtt>,
}

#[derive(Debug, Deserialize)]
struct Rtt {
    p50_us: f64,
    p99_us: f64,
}

impl Shown {
    pub(super) fn of(answer: Value) -> Result<Self, Failure> {
        let unknown = "the shaper is of a version that this one does not know";
        serde_json::from_value(answer).map_err(|error| Failure::new(unknown).because(error))
    }

    /// A line for each device, and a table of all classes.
    pub(super) fn text(&self) -> String {
        let mut text: String = self.devices.iter().map(|device| device.line() + "\n").collect();
        let mut table = Table::new(&[
            "device",
            "class",
            "classid",
            "rate",
            "ceil",
            "Mbit/s",
            "queue B",
            "drops",
            "window B",
            "flows",
            "rtt p50 us",
            "p99 us",
        ]);
        for device in &self.devices {
            for class in &device.classes {
                let count = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
                let word = |word: &Option<String>| word.clone().unwrap_or_else(|| "-".to_owned());
                let of_rtt =
                    |quantile: fn(&Rtt) -> f64| class.rtt.as_ref().map_or("-".to_owned(), |rtt| figure(quantile(rtt)));
                table.row([
                    device.id.clone(),
                    class.name.clone(),
                    class.classid.clone(),
                    word(&class.rate),
                    word(&class.ceil),
                    class.throughput_bit_per_s.map_or("-".to_owned(), |bits| figure(bits / 1e6)),
                    count(class.backlog_bytes),
                    count(class.drops_total),
                    count(class.window_bytes),
                    count(class.flows),
                    of_rtt(|rtt| rtt.p50_us),
                    of_rtt(|rtt| rtt.p99_us),
                ]);
            }
        }
        text.push_str(&table.to_string());
        text
    }
}

impl Device {
    fn line(&self) -> String {
        let namespace = self.namespace.as_ref().map(|namespace| format!(", in {namespace}"));
        let control = match (&self.programs, &self.programs_problem) {
            (Some(Report { hook, occupancy }), _) => {
                format!(", control {}, hook {hook}, queues read: {occupancy}", self.control)
            }
            (None, Some(problem)) => format!(", the tree alone: {problem}"),
            (None, None) => ", the tree alone".to_owned(),
        };
        let unheld = self.flow_table.as_ref().map_or(0, |table| table.unheld_total);
        let unheld = if unheld > 0 { format!(", {unheld} flows found no room in the table") } else { String::new() };
        let isolation = if self.isolation { ", sparse flows first" } else { "" };
        let problem = self.problem.as_ref().map(|problem| format!(": {problem}"));
        let Self { id, state, mode, .. } = self;
        let (namespace, problem) = (namespace.unwrap_or_default(), problem.unwrap_or_default());
        format!("{id}: {state}, mode {mode}{namespace}{control}{isolation}{unheld}{problem}")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_class_without_figures_has_dashes() {
        let class = json!({ "name": "a", "classid": "71de:20", "rate": "1 Gbit/s", "ceil": "1 Gbit/s" });
        let device = json!({
            "id": "eth0", "namespace": null, "mode": "own", "state": "absent", "problem": "it is not there",
            "control": "integral", "isolation": true, "programs": null, "programs_problem": null, "classes": [class],
        });
        let text = Shown::of(json!({ "devices": [device] })).unwrap().text();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "eth0: absent, mode own, the tree alone, sparse flows first: it is not there");
        assert!(lines[2].starts_with("eth0    a      71de:20  1 Gbit/s  1 Gbit/s"), "{text}");
        assert!(lines[2].ends_with(" -"), "{text}");
    }

    #[test]
    fn flows_without_room_are_said() {
        let device = json!({
            "id": "eth0", "namespace": null, "mode": "own", "state": "shaped", "problem": null,
            "control": "integral", "isolation": false, "programs": { "hook": "tcx", "occupancy": "tracepoint" },
            "programs_problem": null, "flow_table": { "known": 9, "evicted_total": 0, "unheld_total": 7 }, "classes": [],
        });
        let text = Shown::of(json!({ "devices": [device] })).unwrap().text();
        let line = "eth0: shaped, mode own, control integral, hook tcx, queues read: tracepoint, 7 flows found no room in the table";
        assert_eq!(text.lines().next(), Some(line));
    }
}
