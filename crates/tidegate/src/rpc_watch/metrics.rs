//! `/metrics`: a server's figures for Prometheus. No label comes from a client but priorities, which are bounded.

use std::fmt::Write as _;

use super::snapshot::{PriorityRow, Snapshot, float};

/// Priorities with rows of their own, those with the most calls; the others are summed up as `other`.
const PRIORITIES: usize = 16;

type Count = fn(&PriorityRow) -> u64;

/// The page.
pub(super) fn page(snapshot: &Snapshot) -> String {
    let mut page = String::new();
    for (name, help, value) in [
        ("offered", "Calls that arrived.", snapshot.offered_total),
        ("served", "Calls whose handler ran to the end.", snapshot.served_total),
        ("good", "Calls served within the objective.", snapshot.good_total),
        ("cancelled", "Calls whose caller went away.", snapshot.cancelled_total),
    ] {
        head(&mut page, &format!("tidegate_rpc_{name}_calls_total"), help, "counter");
        let _ = writeln!(page, "tidegate_rpc_{name}_calls_total {value}");
    }
    let name = "tidegate_rpc_shed_calls_total";
    head(&mut page, name, "Calls shed, by reason.", "counter");
    for (reason, count) in &snapshot.sheds_by_reason {
        let reason = serde_json::to_value(reason).ok();
        let reason = reason.as_ref().and_then(serde_json::Value::as_str).unwrap_or("unknown");
        let _ = writeln!(page, "{name}{{reason=\"{reason}\"}} {count}");
    }
    priorities(&mut page, &snapshot.priorities);
    let delay = snapshot.queueing_delay_us;
    let name = "tidegate_rpc_queueing_delay_seconds";
    head(&mut page, name, "Wait of calls before their start, over the last ten seconds.", "gauge");
    for (quantile, us) in [("0.5", delay.p50), ("0.99", delay.p99), ("0.999", delay.p999)] {
        let _ = writeln!(page, "{name}{{quantile=\"{quantile}\"}} {}", us / 1e6);
    }
    for (name, help, value) in gauges(snapshot) {
        head(&mut page, &format!("tidegate_rpc_{name}"), help, "gauge");
        let _ = writeln!(page, "tidegate_rpc_{name} {value}");
    }
    page
}

fn head(page: &mut String, name: &str, help: &str, kind: &str) {
    let _ = writeln!(page, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn priorities(page: &mut String, rows: &[PriorityRow]) {
    let mut busiest: Vec<&PriorityRow> = rows.iter().collect();
    busiest.sort_by_key(|row| std::cmp::Reverse(row.offered_total));
    let (own, others) = busiest.split_at(busiest.len().min(PRIORITIES));
    let fates: [(&str, Count); 3] =
        [("offered", |row| row.offered_total), ("served", |row| row.served_total), ("shed", |row| row.shed_total)];
    let name = "tidegate_rpc_priority_calls_total";
    head(page, name, "Calls by priority and by what became of them.", "counter");
    for (fate, of) in fates {
        for row in own {
            let _ = writeln!(page, "{name}{{priority=\"{}\",fate=\"{fate}\"}} {}", row.priority, of(row));
        }
        if !others.is_empty() {
            let sum: u64 = others.iter().map(|row| of(row)).sum();
            let _ = writeln!(page, "{name}{{priority=\"other\",fate=\"{fate}\"}} {sum}");
        }
    }
}

fn gauges(snapshot: &Snapshot) -> Vec<(&'static str, &'static str, f64)> {
    let mut rows = vec![
        ("sessions", "Connected clients.", float(snapshot.sessions as u64)),
        ("demand_calls", "Calls that wait at clients, as they last said.", float(snapshot.demand)),
        ("in_server_calls", "Calls in the server.", float(snapshot.in_server)),
        ("uptime_seconds", "Time since the start.", snapshot.uptime_s),
    ];
    if let Some(control) = snapshot.control {
        rows.extend([
            ("credits", "Credits that clients hold.", float(control.credits)),
            ("capacity_calls_per_second", "Calls a second that can be served, as learnt.", control.capacity_per_s),
            (
                "supply_calls_per_second",
                "Calls a second let through; 0 while nobody is held back.",
                control.supply_per_s,
            ),
            ("send_ratio", "Share of ordinary calls that clients are told to send.", control.send_share),
            ("objective_seconds", "How long a call may take, as learnt.", control.objective_us / 1e6),
            ("longest_wait_seconds", "How long a call may wait.", control.longest_wait_us / 1e6),
            ("idle_ratio", "Share of the cores' time without work.", control.idle),
        ]);
    }
    rows
}

#[cfg(test)]
mod tests {
    use tidegate_core::Instant;
    use tidegate_rpc::config::Scheme;
    use tidegate_rpc::machine::{Ask, Done, Priority, Server, Signal, Tenant, Verdict};

    use super::*;
    use crate::rpc_watch::Watched;

    #[test]
    fn the_book_lists_every_metric_and_no_other() {
        let at = Instant::from_nanos;
        let (_, watch) = Watched::new(Scheme::default().server(1, at(0)));
        let page = page(&Snapshot::of("tidegate", at(0), &[watch.look()], at(1)));
        let served: Vec<&str> =
            page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
        let book = include_str!("../../../../docs/src/how-to/monitor-rpc.md");
        let named = |line: &'static str| line.strip_prefix("| `tidegate_rpc_")?.split(['`', '{']).next();
        let listed: Vec<String> = book.lines().filter_map(named).map(|name| format!("tidegate_rpc_{name}")).collect();
        assert_eq!(listed, served);
    }

    #[test]
    fn labels_are_bounded_whatever_clients_send() {
        let at = Instant::from_nanos;
        let (mut machine, watch) = Watched::new(Scheme::default().server(1, at(0)));
        let session = machine.open(Tenant::default(), at(0)).unwrap();
        for priority in 0..=255 {
            let ask = Ask { priority: Priority(priority), ..Ask::default() };
            match machine.on_request(session, &ask, Signal::default(), at(1), at(1)) {
                Verdict::Admit(ticket) => drop(machine.on_done(ticket, Done::Cancelled, at(2))),
                Verdict::Shed(ticket, _) => drop(machine.on_done(ticket, Done::Shed, at(2))),
            }
        }
        let snapshot = Snapshot::of("tidegate", at(0), &[watch.look()], at(3));
        let page = page(&snapshot);
        assert_eq!(page.matches("fate=\"offered\"").count(), PRIORITIES + 1);
        assert!(page.contains("\ntidegate_rpc_offered_calls_total 256\n"), "{page}");
        assert!(page.contains("{priority=\"other\",fate=\"offered\"} 240"), "{page}");
        for line in page.lines().filter(|line| !line.starts_with('#')) {
            assert!(line.starts_with("tidegate_rpc_") && line.split(' ').count() == 2, "{line}");
        }
    }
}
