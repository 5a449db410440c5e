//! `/metrics`: the proxy's figures for Prometheus. Names that clients choose, tenants', have a bounded number of series.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::status::{Health, Live, LiveHandshakes, LiveServer, LiveUpstream};
use crate::config::Config;
use crate::io::conn::tls::Expiry;
use crate::machine::bandwidth;
use crate::machine::neighbours::{Snapshot, TenantView, UseView};
use crate::machine::rate_limit::{Counts, MetricName, Scope};
use crate::machine::response_times::Histogram;

/// Tenants with series of their own: those that use most. The others are summed up as `other`.
const MOST_TENANTS: usize = 32;
const OTHER: &str = "other";

/// A page that grows.
struct Page(String);

type Labels<'a> = &'a [(&'a str, &'a str)];

impl Page {
    fn head(&mut self, name: &str, help: &str, kind: &str) {
        self.put(format_args!("# HELP tidegate_proxy_{name} {help}\n# TYPE tidegate_proxy_{name} {kind}\n"));
    }

    fn row(&mut self, name: &str, labels: Labels<'_>, value: f64) {
        self.put(format_args!("tidegate_proxy_{name}"));
        let mut before = '{';
        for (key, text) in labels {
            self.put(format_args!("{before}{key}=\""));
            for character in text.chars() {
                match character {
                    '\\' => self.0.push_str("\\\\"),
                    '"' => self.0.push_str("\\\""),
                    '\n' => self.0.push_str("\\n"),
                    other => self.0.push(other),
                }
            }
            self.0.push('"');
            before = ',';
        }
        if before == ',' {
            self.0.push('}');
        }
        self.put(format_args!(" {value}\n"));
    }

    fn single(&mut self, name: &str, help: &str, kind: &str, value: f64) {
        self.head(name, help, kind);
        self.row(name, &[], value);
    }

    /// All series of `times`, which have one label; none if nothing was counted.
    fn histogram(&mut self, name: &str, (key, text): (&str, &str), times: &Histogram) {
        let count = times.count();
        if count == 0 {
            return;
        }
        let bucket = format!("{name}_bucket");
        for (bound_us, count) in times.cumulative() {
            let bound = (float(bound_us) / 1e6).to_string();
            self.row(&bucket, &[(key, text), ("le", &bound)], float(count));
        }
        self.row(&bucket, &[(key, text), ("le", "+Inf")], float(count));
        self.row(&format!("{name}_sum"), &[(key, text)], times.sum().as_secs_f64());
        self.row(&format!("{name}_count"), &[(key, text)], float(count));
    }

    fn put(&mut self, text: std::fmt::Arguments<'_>) {
        self.0.write_fmt(text).expect("writing to a string does not fail");
    }
}

#[expect(clippy::cast_precision_loss, reason = "a metric is a float; counts beyond 2^53 lose their last digits")]
fn float(count: u64) -> f64 {
    count as f64
}

/// The page.
pub(super) fn page(config: &Config, snapshot: &Snapshot, live: &Live) -> String {
    let mut page = Page(String::with_capacity(16 << 10));
    traffic(&mut page, config, live);
    processors(&mut page, live);
    resources(&mut page, snapshot);
    tenants(&mut page, snapshot);
    response_times(&mut page, config, snapshot, live);
    bandwidths(&mut page, config, live);
    upstreams(&mut page, config, live);
    rate_limits(&mut page, live);
    certificates(&mut page, live);
    let (written, dropped) = live.access_log;
    page.head("access_log_lines_total", "Lines of the access log by what became of them.", "counter");
    page.row("access_log_lines_total", &[("outcome", "written")], float(written));
    page.row("access_log_lines_total", &[("outcome", "dropped")], float(dropped));
    page.row("access_log_lines_total", &[("outcome", "left_out")], float(live.unlogged_total));
    page.single("spool_bytes", "Bytes that bodies hold in the spool.", "gauge", float(live.spool.bytes));
    page.head("spool_failures_total", "Pieces of bodies that the spool's disk did not take, or give back.", "counter");
    page.row("spool_failures_total", &[("operation", "write")], float(live.spool.failed_writes));
    page.row("spool_failures_total", &[("operation", "read")], float(live.spool.failed_reads));
    page.single("reloads_total", "Times that the configuration was replaced.", "counter", float(live.reloads));
    let help = "Times that another configuration could not be read or used.";
    page.single("reloads_failed_total", help, "counter", float(live.reloads_failed));
    let help = "0 if the last reload failed: what is in force is not what the file says.";
    page.single("last_reload_successful", help, "gauge", f64::from(!live.last_reload_failed));
    page.single("uptime_seconds", "Time since the start.", "gauge", live.uptime_s);
    page.0
}

fn traffic(page: &mut Page, config: &Config, live: &Live) {
    page.single("connections", "Client connections that are open.", "gauge", float(live.connections));
    page.single("connections_total", "Client connections.", "counter", float(live.connections_total));
    page.single("handshakes_total", "TLS handshakes that ended well.", "counter", float(live.handshakes_total));
    let rare = [
        ("handshakes_failed_total", "TLS handshakes that did not end well.", live.handshakes_failed_total),
        ("handshakes_resumed_total", "TLS handshakes that resumed a session.", live.handshakes_resumed_total),
        ("hellos_refused_total", "Connections refused at their ClientHello.", live.hellos_refused_total),
        ("handshakes_beyond_total", "Handshakes beyond their tenants' shares.", live.handshakes_beyond_total),
        ("clients_timed_out_total", "Clients that took too long.", live.clients_timed_out_total),
        ("out_of_files_total", "Times that there was no file left to open for a connection.", live.out_of_files_total),
        ("malformed_total", "Requests and first bytes that broke the rules.", live.malformed_total),
    ];
    for (name, help, count) in rare {
        page.single(name, help, "counter", float(count));
    }
    page.head("requests_total", "Requests by route.", "counter");
    for (route, count) in config.routes.iter().zip(&live.requests_total) {
        page.row("requests_total", &[("route", &route.name)], float(*count));
    }
    page.head("responses_total", "Requests by the class of their answer; none is without one.", "counter");
    for (class, count) in ["none", "1xx", "2xx", "3xx", "4xx", "5xx"].into_iter().zip(live.responses_total) {
        page.row("responses_total", &[("class", class)], float(count));
    }
}

/// What the process may use of the processors; of a quota that there is not, nothing is told.
fn processors(page: &mut Page, live: &Live) {
    let quota = live.cpu.and_then(|cpu| cpu.quota);
    let throttled = live.cpu.and_then(|cpu| cpu.throttled);
    let rows = [
        (
            "processors",
            "Processors that the process may run on.",
            "gauge",
            live.cpu.map(|cpu| float(cpu.processors as u64)),
        ),
        (
            "cpu_quota_cores",
            "Processor time of the least quota of its control groups, in cores.",
            "gauge",
            quota.map(|quota| quota.cores()),
        ),
        (
            "cpu_throttled_periods_total",
            "Periods in which that quota was used up.",
            "counter",
            throttled.map(|throttled| float(throttled.periods)),
        ),
        (
            "cpu_throttled_seconds_total",
            "Time for which it kept threads from running.",
            "counter",
            throttled.map(|throttled| throttled.time.as_secs_f64()),
        ),
    ];
    for (name, help, kind, value) in rows {
        page.head(name, help, kind);
        if let Some(value) = value {
            page.row(name, &[], value);
        }
    }
}

fn resources(page: &mut Page, snapshot: &Snapshot) {
    page.head("mode", "1 for what the limits do now: off, stats or restrict.", "gauge");
    page.row("mode", &[("mode", &format!("{:?}", snapshot.mode).to_lowercase())], 1.0);
    page.head("resource_capacity", "What there is of a resource, for each second or at once.", "gauge");
    for resource in &snapshot.resources {
        if let Some(capacity) = resource.capacity {
            page.row("resource_capacity", &[("resource", &resource.name)], capacity);
        }
    }
    page.head("resource_used", "What all tenants use of it.", "gauge");
    for resource in &snapshot.resources {
        page.row("resource_used", &[("resource", &resource.name)], resource.used);
    }
    page.head("resource_overflow", "What of it is nobody's share.", "gauge");
    for resource in &snapshot.resources {
        page.row("resource_overflow", &[("resource", &resource.name)], resource.global);
    }
    page.head("refused_total", "What was refused for want of it: over_share is 429, system_full 503.", "counter");
    for resource in &snapshot.resources {
        let labels = |cause| [("resource", resource.name.as_str()), ("cause", cause)];
        page.row("refused_total", &labels("over_share"), float(resource.refused_share));
        page.row("refused_total", &labels("system_full"), float(resource.refused_full));
    }
}

/// Seconds since 1970, as other figures of Prometheus; each file once, though several may name it.
fn certificates(page: &mut Page, live: &Live) {
    type End = fn(&Expiry) -> Option<u64>;
    let ends: [(&str, &str, End); 2] = [
        ("certificate_expiry_timestamp_seconds", "When a certificate ends.", |one| one.certificate),
        ("ocsp_expiry_timestamp_seconds", "When the OCSP response ends that is stapled to it.", |one| one.staple),
    ];
    for (name, help, end) in ends {
        page.head(name, help, "gauge");
        let all: BTreeMap<_, _> = live.certificates.iter().filter_map(|one| Some((&one.file, end(one)?))).collect();
        for (file, end) in all {
            page.row(name, &[("certificate", file)], float(end));
        }
    }
}

/// Figures of one tenant, or of many.
type Sum = Vec<(String, f64)>;
/// A metric's name and help, and how it is found.
type Figure<T> = (&'static str, &'static str, fn(&T) -> f64);

fn tenants(page: &mut Page, snapshot: &Snapshot) {
    let (own, others) = snapshot.tenants.split_at(snapshot.tenants.len().min(MOST_TENANTS));
    page.single("tenants", "Tenants that asked for something lately.", "gauge", float(snapshot.tenants_total));
    let figures: [Figure<UseView>; 4] = [
        ("tenant_share", "What a tenant is granted, for each second or at once.", |one| one.share),
        ("tenant_demand", "What it is expected to want.", |one| one.demand),
        ("tenant_used", "What it uses.", |one| one.used),
        ("tenant_overflow", "What of that is beyond its share.", |one| one.overflow),
    ];
    for (name, help, figure) in figures {
        page.head(name, help, "gauge");
        for tenant in own {
            let label = label(&tenant.name);
            for one in &tenant.resources {
                page.row(name, &[("tenant", &label), ("resource", &one.name)], figure(one));
            }
        }
        for (resource, sum) in summed(others, figure) {
            page.row(name, &[("tenant", OTHER), ("resource", &resource)], sum);
        }
    }
    page.head("tenant_refused_total", "Refusals of a tenant by how far it had come.", "counter");
    for tenant in own {
        let label = label(&tenant.name);
        for (stage, count) in stages(tenant) {
            page.row("tenant_refused_total", &[("tenant", &label), ("stage", stage)], float(count));
        }
    }
    let Some(first) = others.first() else { return };
    for (at, (stage, _)) in stages(first).into_iter().enumerate() {
        let sum: u64 = others.iter().map(|tenant| stages(tenant)[at].1).sum();
        page.row("tenant_refused_total", &[("tenant", OTHER), ("stage", stage)], float(sum));
    }
}

/// Of the tenants those that have series of their own, as above; the others are one.
fn response_times(page: &mut Page, config: &Config, snapshot: &Snapshot, live: &Live) {
    let (name, help) = ("route_response_time_seconds", "From a request's head to the end of its answer, by route.");
    page.head(name, help, "histogram");
    for (route, times) in config.routes.iter().zip(&live.times.routes) {
        page.histogram(name, ("route", &route.name), times);
    }
    let (name, help) = ("tenant_response_time_seconds", "The same by tenant.");
    page.head(name, help, "histogram");
    let own = &snapshot.tenants[..snapshot.tenants.len().min(MOST_TENANTS)];
    let mut other = live.times.other;
    for (tenant, times) in &live.times.tenants {
        if own.iter().any(|own| *own.name == **tenant) {
            page.histogram(name, ("tenant", &label(tenant)), times);
        } else {
            other.merge(times);
        }
    }
    page.histogram(name, ("tenant", OTHER), &other);
    let (name, help) = ("upstream_head_time_seconds", "From asking an upstream to the head of its answer.");
    page.head(name, help, "histogram");
    for (upstream, times) in config.upstreams.iter().zip(&live.times.upstreams) {
        page.histogram(name, ("upstream", &upstream.name), times);
    }
}

/// Only tenants with a number in the file are here, so they are bounded by it.
fn bandwidths(page: &mut Page, config: &Config, live: &Live) {
    page.head("tenant_bandwidth", "Bytes per second that a tenant's bodies and tunnels may move.", "gauge");
    for tenant in &config.tenants.named {
        if let Some(bytes) = tenant.bandwidth {
            page.row("tenant_bandwidth", &[("tenant", &label(&tenant.name))], float(bytes));
        }
    }
    let figures: [Figure<bandwidth::Counts>; 2] = [
        ("tenant_paced_bytes_total", "Bytes of such a tenant's bodies and tunnels.", |counts| float(counts.bytes)),
        ("tenant_paced_waits_total", "Pieces of them that had to wait.", |counts| float(counts.waits)),
    ];
    for (name, help, figure) in figures {
        page.head(name, help, "counter");
        for (tenant, counts) in &live.bandwidths {
            page.row(name, &[("tenant", &label(tenant))], figure(counts));
        }
    }
}

/// The limiter's own `other`, of tenants without a place in its table, is not the sum of the rest of this page.
fn label(name: &str) -> String {
    if name == OTHER { "(untracked)".to_owned() } else { name.to_owned() }
}

fn summed(tenants: &[TenantView], figure: fn(&UseView) -> f64) -> Sum {
    let mut sums: Sum = Vec::new();
    for one in tenants.iter().flat_map(|tenant| &tenant.resources) {
        match sums.iter_mut().find(|(name, _)| *name == one.name) {
            Some((_, sum)) => *sum += figure(one),
            None => sums.push((one.name.clone(), figure(one))),
        }
    }
    sums
}

fn stages(tenant: &TenantView) -> [(&'static str, u64); 3] {
    let refused = tenant.refused;
    [("hello", refused.hello), ("request", refused.request), ("queue", refused.queue)]
}

fn upstreams(page: &mut Page, config: &Config, live: &Live) {
    let counted = || config.upstreams.iter().zip(&live.upstreams);
    page.head("upstream_waiting", "Requests that wait for a connection.", "gauge");
    for (upstream, live) in counted() {
        page.row("upstream_waiting", &[("upstream", &upstream.name)], float(live.waiting));
    }
    let help = "Requests that may wait for the heads of their answers, where that is limited.";
    page.head("upstream_concurrency_limit", help, "gauge");
    for (upstream, live) in counted() {
        if let Some(limit) = live.limit {
            page.row("upstream_concurrency_limit", &[("upstream", &upstream.name)], float(limit));
        }
    }
    page.head("upstream_retries_total", "Tries after the first.", "counter");
    for (upstream, live) in counted() {
        page.row("upstream_retries_total", &[("upstream", &upstream.name)], float(live.retries_total));
    }
    page.head("upstream_handshakes_total", "TLS handshakes with its servers by how they ended.", "counter");
    for (upstream, live) in counted().filter(|(upstream, _)| upstream.tls.is_some()) {
        let LiveHandshakes { full, resumed, failed } = live.handshakes;
        for (outcome, count) in [("full", full), ("resumed", resumed), ("failed", failed)] {
            let labels = [("upstream", upstream.name.as_str()), ("outcome", outcome)];
            page.row("upstream_handshakes_total", &labels, float(count));
        }
    }
    let lookups: [Figure<LiveUpstream>; 2] = [
        ("upstream_lookups_total", "Lookups of its servers' names.", |live| float(live.lookups_total)),
        ("upstream_lookups_failed_total", "Those without an address.", |live| float(live.lookups_failed_total)),
    ];
    for (name, help, figure) in lookups {
        page.head(name, help, "counter");
        for (upstream, live) in counted() {
            page.row(name, &[("upstream", &upstream.name)], figure(live));
        }
    }
    let figures: [Figure<LiveServer>; 4] = [
        ("server_up", "1 while a server gets requests.", |server| f64::from(server.health == Health::Up)),
        ("server_active", "Its requests under way.", |server| float(server.active)),
        ("server_requests_total", "Its requests.", |server| float(server.requests_total)),
        ("server_failures_total", "Those that failed.", |server| float(server.failures_total)),
    ];
    for (name, help, figure) in figures {
        page.head(name, help, if name.ends_with("_total") { "counter" } else { "gauge" });
        for (upstream, live) in counted() {
            for (server, live) in live.servers_of(upstream) {
                page.row(name, &[("upstream", upstream.name.as_str()), ("server", server.as_str())], figure(&live));
            }
        }
    }
}

fn rate_limits(page: &mut Page, live: &Live) {
    page.head("rate_limit", "What a rate limit counted, under the name that the ATS plugin gives it.", "untyped");
    // Limits that the configuration gives one name have one series, and it is the sum of theirs.
    let mut sums: BTreeMap<(&str, &str, &str), Counts> = BTreeMap::new();
    for limit in &live.rate_limits {
        *sums.entry((limit.prefix.as_str(), limit.scope, limit.tag.as_str())).or_default() += limit.counts;
    }
    for ((prefix, scope, tag), counts) in sums {
        let scope = if scope == "sni" { Scope::Sni } else { Scope::Remap };
        for (metric, value) in counts.named() {
            let name = MetricName { prefix, scope, tag, metric };
            page.row("rate_limit", &[("name", &name.to_string())], float(value));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tidegate_runtime::config::Document;
    use tidegate_runtime::cpu::{CpuLimits, Quota, Throttled};

    use super::*;
    use crate::io::admin::status::LiveRateLimit;
    use crate::machine::neighbours::{Lane, RefusedView};

    fn config() -> Config {
        let text = "[[proxy.upstream]]\nname = \"u\"\nservers = [\"127.0.0.1:1\"]\n[[proxy.route]]\nupstream = \"u\"\n";
        Config::from_document(&Document::new("t.toml", text), 1).unwrap()
    }

    fn tenant(name: &str, used: f64) -> TenantView {
        let one = UseView {
            name: "requests".to_owned(),
            demand: used,
            share: 1.0,
            used,
            overflow: 0.0,
            lent: 0.0,
            refused_share: 0,
            refused_full: 0,
        };
        let refused = RefusedView { request: 2, ..RefusedView::default() };
        TenantView { name: name.to_owned(), weight: 1, lane: Lane::Share, resources: vec![one], refused }
    }

    #[test]
    fn labels_are_bounded_whatever_names_clients_send() {
        let tenants = (0..100).map(|n| tenant(&format!("t{n}"), 1.0)).collect();
        let page = page(&config(), &Snapshot { tenants, ..Snapshot::default() }, &Live::default());
        assert_eq!(page.matches("tidegate_proxy_tenant_used{").count(), MOST_TENANTS + 1);
        assert!(page.contains("tidegate_proxy_tenant_used{tenant=\"other\",resource=\"requests\"} 68\n"));
        assert!(page.contains("tidegate_proxy_tenant_refused_total{tenant=\"other\",stage=\"request\"} 136\n"));
    }

    #[test]
    fn no_series_is_there_twice() {
        let mut tenants: Vec<TenantView> = (0..40).map(|n| tenant(&format!("t{n}"), 1.0)).collect();
        tenants[0].name = OTHER.to_owned();
        let counts = Counts { rejected: 2, ..Counts::default() };
        let limit = LiveRateLimit {
            scope: "remap",
            prefix: "p".to_owned(),
            tag: "t".to_owned(),
            counts,
            ..LiveRateLimit::default()
        };
        let live = Live { rate_limits: vec![limit.clone(), limit], ..Live::default() };
        let page = page(&config(), &Snapshot { tenants, ..Snapshot::default() }, &live);
        assert!(page.contains("tidegate_proxy_rate_limit{name=\"p.remap.t.rejected\"} 4\n"), "{page}");
        let mut series: Vec<&str> = page
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.rsplit_once(' '))
            .map(|(name, _)| name)
            .collect();
        let all = series.len();
        series.sort_unstable();
        series.dedup();
        assert_eq!(series.len(), all);
    }

    #[test]
    fn response_times_are_prometheus_histograms_and_tenants_without_series_are_one() {
        let mut times = Histogram::default();
        for ms in [1, 40_000] {
            times.add(Duration::from_millis(ms));
        }
        let names = (0..100).map(|n| format!("t{n}"));
        let mut live = Live::default();
        live.times.routes = vec![times];
        live.times.tenants = names.clone().map(|name| (name.into(), times)).collect();
        live.times.other = times;
        let snapshot = Snapshot { tenants: names.map(|name| tenant(&name, 1.0)).collect(), ..Snapshot::default() };
        let page = page(&config(), &snapshot, &live);
        let route = |series: &str| page.contains(&format!("tidegate_proxy_route_response_time_seconds_{series}\n"));
        for (bound, count) in [("0.0005", 0), ("0.001", 1), ("30", 1), ("+Inf", 2)] {
            assert!(route(&format!("bucket{{route=\"*/\",le=\"{bound}\"}} {count}")), "{bound}: {page}");
        }
        assert!(route("sum{route=\"*/\"} 40.001") && route("count{route=\"*/\"} 2"), "{page}");
        let tenants = "tidegate_proxy_tenant_response_time_seconds_count{";
        assert_eq!(page.matches(tenants).count(), MOST_TENANTS + 1);
        assert!(page.contains(&format!("{tenants}tenant=\"other\"}} 138\n")), "68 tenants, and what had no place");
        assert!(!page.contains("upstream_head_time_seconds_count"), "nothing was counted");
    }

    #[test]
    fn names_from_clients_cannot_break_a_line() {
        let tenants = vec![tenant("a\"} 1\nevil{x=\"", 1.0)];
        let page = page(&config(), &Snapshot { tenants, ..Snapshot::default() }, &Live::default());
        assert!(page.contains("{tenant=\"a\\\"} 1\\nevil{x=\\\"\",resource=\"requests\"} 1\n"), "{page}");
    }

    #[test]
    fn a_quota_is_told_if_there_is_one() {
        let quota = Quota { time: Duration::from_millis(150), period: Duration::from_millis(100) };
        let throttled = Throttled { periods: 7, time: Duration::from_millis(350) };
        let mut cpu = CpuLimits { processors: 4, quota: None, throttled: None };
        let mut told = |quota, throttled| {
            (cpu.quota, cpu.throttled) = (quota, throttled);
            let page = page(&config(), &Snapshot::default(), &Live { cpu: Some(cpu), ..Live::default() });
            page.lines()
                .filter(|line| line.contains("y_cpu_") || line.contains("y_processors"))
                .fold(String::new(), |all, line| if line.starts_with('#') { all } else { all + line + "\n" })
        };
        assert_eq!(told(None, None), "tidegate_proxy_processors 4\n");
        assert_eq!(
            told(Some(quota), Some(throttled)),
            "tidegate_proxy_processors 4\ntidegate_proxy_cpu_quota_cores 1.5\n\
             tidegate_proxy_cpu_throttled_periods_total 7\ntidegate_proxy_cpu_throttled_seconds_total 0.35\n"
        );
    }

    #[test]
    fn the_book_lists_every_metric_and_no_other() {
        let page = page(&config(), &Snapshot::default(), &Live::default());
        let served: Vec<&str> =
            page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
        let book = include_str!("../../../../../docs/src/how-to/monitor-proxy.md");
        let named = |line: &'static str| line.strip_prefix("| `tidegate_proxy_")?.split(['`', '{']).next();
        let listed: Vec<String> = book.lines().filter_map(named).map(|name| format!("tidegate_proxy_{name}")).collect();
        assert_eq!(listed, served);
    }
}
