//! The figures in Prometheus' text format. Labels are closed sets, numbers of tenants and `other`: none needs escaping.

use core::fmt::Write as _;

use super::figures::Figures;
use super::metrics::{Kind, METRICS, Series};

/// The type of the page, as HTTP has it.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The page.
#[must_use]
pub fn page(figures: &Figures) -> String {
    let mut page = String::new();
    for metric in METRICS {
        let series = (metric.series)(figures);
        // A counter that has counted nothing is told all the same: who looks for it finds it.
        if series.is_empty() && metric.kind == Kind::Gauge {
            continue;
        }
        let kind = if metric.kind == Kind::Counter { "counter" } else { "gauge" };
        put(&mut page, format_args!("# HELP {name} {}\n# TYPE {name} {kind}\n", metric.help, name = metric.name));
        for Series { labels, value } in series {
            page.push_str(metric.name);
            for (place, (name, label)) in labels.iter().enumerate() {
                put(&mut page, format_args!("{}{name}=\"{label}\"", if place == 0 { '{' } else { ',' }));
            }
            if !labels.is_empty() {
                page.push('}');
            }
            put(&mut page, format_args!(" {value}\n"));
        }
    }
    page
}

fn put(page: &mut String, text: core::fmt::Arguments<'_>) {
    page.write_fmt(text).expect("writing to a string does not fail");
}
