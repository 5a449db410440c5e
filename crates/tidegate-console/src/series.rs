//! The last five minutes of each row, one point a second, so that a chart is full the moment a page opens.

use std::collections::{BTreeMap, VecDeque};

use serde::Serialize;

use crate::view::{Broker, Row, RowId};

/// Rows with a series; later rows get one when an earlier row disappears.
pub(crate) const MAX_SERIES: usize = 512;
/// Points of a series.
pub(crate) const MAX_POINTS: usize = 300;
/// Points of each series in the overview.
const OVERVIEW_POINTS: usize = 60;
/// Least distance of two points.
const STEP_MS: u64 = 1_000;

/// One point: time, then the figures in the order of [`Columns`].
#[derive(Clone, Copy, Debug)]
struct Point {
    at_ms: u64,
    figures: [f64; 6],
}

/// A series for the page: columns of equal length, oldest first.
#[derive(Default, Debug, Serialize)]
pub(crate) struct Columns {
    at_ms: Vec<u64>,
    offered_per_s: Vec<f64>,
    admitted_per_s: Vec<f64>,
    access_p99_us: Vec<f64>,
    end_to_end_p99_us: Vec<f64>,
    depth: Vec<f64>,
    in_flight: Vec<f64>,
}

/// A row's rates, for its sparkline.
#[derive(Debug, Serialize)]
pub(crate) struct Spark<'a> {
    #[serde(flatten)]
    id: &'a RowId,
    offered_per_s: Vec<f64>,
    admitted_per_s: Vec<f64>,
}

/// All series. At most [`MAX_SERIES`] times [`MAX_POINTS`] points of 56 bytes: 8.2 MiB.
#[derive(Default, Debug)]
pub(crate) struct SeriesBook {
    series: BTreeMap<RowId, VecDeque<Point>>,
}

impl SeriesBook {
    /// Adds a point to each row's series, unless its newest is less than a second old.
    ///
    /// `rows` are in order of their ids. The series of a row that is gone ends, but not while its broker is down: it
    /// may be back in a moment.
    pub(crate) fn push(&mut self, brokers: &[Broker], rows: &[Row]) {
        let clock = |name: &str| brokers.iter().find(|b| *b.name == *name && b.error.is_none()).map(|b| b.now_ms);
        self.series.retain(|id, _| {
            let known = brokers.iter().any(|broker| broker.name == id.broker);
            known && (clock(&id.broker).is_none() || rows.binary_search_by(|row| row.id.cmp(id)).is_ok())
        });
        for row in rows {
            let Some(at_ms) = clock(&row.id.broker) else { continue };
            if !self.series.contains_key(&row.id) {
                if self.series.len() == MAX_SERIES {
                    continue;
                }
                self.series.insert(row.id.clone(), VecDeque::new());
            }
            let points = self.series.get_mut(&row.id).expect("inserted above");
            match points.back() {
                // A clock that stepped back starts the series anew: charts need times that increase.
                Some(newest) if newest.at_ms > at_ms => points.clear(),
                Some(newest) if at_ms - newest.at_ms < STEP_MS => continue,
                _ => {}
            }
            if points.len() == MAX_POINTS {
                points.pop_front();
            }
            points.push_back(Point { at_ms, figures: figures(row) });
        }
    }

    /// One row's series; empty if it has none.
    pub(crate) fn columns(&self, id: &RowId) -> Columns {
        let mut columns = Columns::default();
        for Point { at_ms, figures: [offered, admitted, access, end_to_end, depth, in_flight] } in
            self.series.get(id).into_iter().flatten()
        {
            columns.at_ms.push(*at_ms);
            columns.offered_per_s.push(*offered);
            columns.admitted_per_s.push(*admitted);
            columns.access_p99_us.push(*access);
            columns.end_to_end_p99_us.push(*end_to_end);
            columns.depth.push(*depth);
            columns.in_flight.push(*in_flight);
        }
        columns
    }

    /// The last minute of every row's rates.
    pub(crate) fn overview(&self) -> Vec<Spark<'_>> {
        let of = |points: &VecDeque<Point>, figure: usize| {
            let skipped = points.len().saturating_sub(OVERVIEW_POINTS);
            points.iter().skip(skipped).map(|point| point.figures[figure]).collect()
        };
        self.series
            .iter()
            .map(|(id, points)| Spark { id, offered_per_s: of(points, 0), admitted_per_s: of(points, 1) })
            .collect()
    }
}

fn figures(row: &Row) -> [f64; 6] {
    use crate::rates::as_f64;
    [
        row.offered_per_s,
        row.admitted_per_s,
        row.access_delay_us.p99,
        row.end_to_end_us.p99,
        as_f64(row.depth),
        as_f64(row.in_flight),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::BrokerSnapshot;
    use crate::view::Ledger;

    fn rows(topics: usize) -> Vec<Row> {
        let topics: Vec<_> = (0..topics).map(|i| serde_json::json!({"name": format!("t{i:04}"), "depth": i})).collect();
        let snapshot: BrokerSnapshot = serde_json::from_value(serde_json::json!({ "topics": topics })).expect("valid");
        Ledger::default().rows(&[("b".into(), snapshot)]).0
    }

    fn at(now_ms: u64) -> [Broker; 1] {
        [Broker::up("b".into(), &BrokerSnapshot { now_ms, ..BrokerSnapshot::default() })]
    }

    #[test]
    fn series_are_bounded_in_number_and_length() {
        let mut book = SeriesBook::default();
        let rows = rows(MAX_SERIES + 5);
        for second in 0..MAX_POINTS as u64 + 10 {
            book.push(&at(second * STEP_MS), &rows);
        }
        assert_eq!(book.series.len(), MAX_SERIES);
        assert!(book.series.values().all(|points| points.len() == MAX_POINTS));
        let columns = book.columns(&rows[3].id);
        assert_eq!((columns.at_ms[0], columns.at_ms.len()), (10 * STEP_MS, MAX_POINTS));
        assert!((columns.depth[0] - 3.0).abs() < 1e-9);
        assert_eq!(book.overview()[0].offered_per_s.len(), OVERVIEW_POINTS);
    }

    #[test]
    fn a_row_that_disappears_makes_room() {
        let mut book = SeriesBook::default();
        let rows = rows(MAX_SERIES + 1);
        book.push(&at(0), &rows);
        assert!(book.columns(&rows[MAX_SERIES].id).at_ms.is_empty());
        book.push(&at(STEP_MS), &rows[1..]);
        assert_eq!(book.columns(&rows[MAX_SERIES].id).at_ms, [STEP_MS]);
        assert!(book.columns(&rows[0].id).at_ms.is_empty());
    }

    #[test]
    fn a_broker_that_is_down_keeps_its_series() {
        let mut book = SeriesBook::default();
        let rows = rows(1);
        book.push(&at(0), &rows);
        book.push(&[Broker::down("b".into(), "refused".to_owned())], &[]);
        book.push(&at(5_000), &rows);
        assert_eq!(book.columns(&rows[0].id).at_ms, [0, 5_000]);
        book.push(&at(6_000), &[]);
        assert!(book.columns(&rows[0].id).at_ms.is_empty(), "it is up, and the topic is gone");
    }

    #[test]
    fn points_are_a_second_apart_and_times_increase() {
        let mut book = SeriesBook::default();
        let rows = rows(1);
        for at_ms in [0, 250, 999, 1_000, 1_250, 2_300, 40] {
            book.push(&at(at_ms), &rows);
        }
        assert_eq!(book.columns(&rows[0].id).at_ms, [40], "the clock stepped back");
        book.push(&at(1_040), &rows);
        assert_eq!(book.columns(&rows[0].id).at_ms, [40, 1_040]);
    }
}
