//! The metrics as observable instruments of an OpenTelemetry meter. Feature `opentelemetry`.

use core::time::Duration;
use std::sync::{Arc, Mutex, PoisonError};

use opentelemetry::KeyValue;
use opentelemetry::metrics::Meter;
use tidegate_core::Instant;

use super::Telemetry;
use super::figures::Figures;
use super::metrics::{Kind, METRICS, Metric, Series};

/// One collection asks each instrument: they share what was seen within this span.
const SAME: Duration = Duration::from_millis(100);

/// The newest look.
struct Newest {
    telemetry: Telemetry,
    seen: Mutex<Option<(Instant, Arc<Figures>)>>,
}

impl Newest {
    fn figures(&self) -> Arc<Figures> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.telemetry.source.now();
        if let Some((at, figures)) = &*seen
            && now.since(*at) < SAME
        {
            return Arc::clone(figures);
        }
        let figures = Arc::new(self.telemetry.figures());
        *seen = Some((now, Arc::clone(&figures)));
        figures
    }

    fn each(&self, metric: &Metric, mut observe: impl FnMut(f64, &[KeyValue])) {
        for Series { labels, value } in (metric.series)(&self.figures()) {
            let labels: Vec<KeyValue> =
                labels.into_iter().map(|(name, label)| KeyValue::new(name, label.into_owned())).collect();
            observe(value, &labels);
        }
    }
}

impl Telemetry {
    /// Has `meter` observe every metric whenever it collects. Names are those of [`super::prometheus`], without the
    /// `_total` of counters.
    pub fn observe(&self, meter: &Meter) {
        let newest = Arc::new(Newest { telemetry: self.clone(), seen: Mutex::new(None) });
        for metric in METRICS {
            let newest = Arc::clone(&newest);
            match metric.kind {
                Kind::Counter => {
                    let name = metric.name.strip_suffix("_total").unwrap_or(metric.name);
                    let counter = meter.u64_observable_counter(name).with_description(metric.help);
                    let observe = move |observer: &dyn opentelemetry::metrics::AsyncInstrument<u64>| {
                        newest.each(metric, |value, labels| observer.observe(whole(value), labels));
                    };
                    counter.with_unit(metric.unit).with_callback(observe).build();
                }
                Kind::Gauge => {
                    let gauge = meter.f64_observable_gauge(metric.name).with_description(metric.help);
                    let observe = move |observer: &dyn opentelemetry::metrics::AsyncInstrument<f64>| {
                        newest.each(metric, |value, labels| observer.observe(value, labels));
                    };
                    gauge.with_unit(metric.unit).with_callback(observe).build();
                }
            }
        }
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "counts, which are whole")]
fn whole(value: f64) -> u64 {
    value as u64
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use opentelemetry::metrics::{
        AsyncInstrument, AsyncInstrumentBuilder, Callback, InstrumentProvider, ObservableCounter, ObservableGauge,
    };

    use super::*;
    use crate::io::layer::ServerLayer;

    type Named<T> = Vec<(String, Callback<T>)>;

    /// Keeps the callbacks of instruments, as an SDK does.
    #[derive(Default)]
    struct Collector {
        counters: Mutex<Named<u64>>,
        gauges: Mutex<Named<f64>>,
    }

    impl InstrumentProvider for Collector {
        fn u64_observable_counter(
            &self,
            builder: AsyncInstrumentBuilder<'_, ObservableCounter<u64>, u64>,
        ) -> ObservableCounter<u64> {
            let name = builder.name.into_owned();
            self.counters
                .lock()
                .unwrap()
                .extend(builder.callbacks.into_iter().map(|callback| (name.clone(), callback)));
            ObservableCounter::new()
        }

        fn f64_observable_gauge(
            &self,
            builder: AsyncInstrumentBuilder<'_, ObservableGauge<f64>, f64>,
        ) -> ObservableGauge<f64> {
            let name = builder.name.into_owned();
            self.gauges.lock().unwrap().extend(builder.callbacks.into_iter().map(|callback| (name.clone(), callback)));
            ObservableGauge::new()
        }
    }

    #[derive(Default)]
    struct Observed(Mutex<Vec<(f64, usize)>>);

    impl AsyncInstrument<u64> for Observed {
        fn observe(&self, value: u64, labels: &[KeyValue]) {
            self.0.lock().unwrap().push((super::super::figures::float(value), labels.len()));
        }
    }

    impl AsyncInstrument<f64> for Observed {
        fn observe(&self, value: f64, labels: &[KeyValue]) {
            self.0.lock().unwrap().push((value, labels.len()));
        }
    }

    impl Collector {
        fn collect(&self) -> BTreeMap<String, Vec<(f64, usize)>> {
            let mut all = BTreeMap::new();
            for (name, callback) in &*self.counters.lock().unwrap() {
                let observed = Observed::default();
                callback(&observed);
                all.insert(name.clone(), observed.0.into_inner().unwrap());
            }
            for (name, callback) in &*self.gauges.lock().unwrap() {
                let observed = Observed::default();
                callback(&observed);
                all.insert(name.clone(), observed.0.into_inner().unwrap());
            }
            all
        }
    }

    #[test]
    fn every_metric_is_an_instrument_and_observes_what_the_page_says() {
        let collector = Arc::new(Collector::default());
        ServerLayer::default().telemetry().observe(&Meter::new(collector.clone()));
        let all = collector.collect();
        assert_eq!(all.len(), METRICS.len());
        assert!(all.keys().all(|name| !name.ends_with("_total")));
        assert_eq!(all["tidegate_rpc_offered_calls"], [(0.0, 0)]);
        assert_eq!(all["tidegate_rpc_priority_calls"].len(), 4 * 5);
        assert_eq!(all["tidegate_rpc_short_bool"][0], (1.0, 1), "nothing is short");
    }
}
