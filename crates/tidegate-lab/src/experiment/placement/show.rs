//! Table and figures of placements.

use super::Placement;
use super::point::{Metric, Point, in_words};
use super::series::Compared;
use crate::figure::{Figure, Scale, Series, Stroke};
use crate::table::{Table, number};

/// Delays are drawn by factors if the longest is so many times the shortest.
const LOG_FROM: f64 = 20.0;

impl Placement {
    pub(super) fn table(&self, points: &[Point]) -> Table {
        let paper = match self.show {
            Metric::Seconds => "paper".to_owned(),
            show => format!("paper: {}", show.title()),
        };
        let header = [
            self.axis.title(),
            "series",
            "brokers",
            "smallest part %",
            "rounds",
            "seconds",
            &paper,
            "p99 ms",
            "sd",
            "worst broker",
            "access p99 ms",
            "met",
            "fitted",
            "burst",
        ];
        let mut table = Table::new(header);
        for point in points {
            table.push([
                number(point.value),
                point.series.clone(),
                number(point.value(Metric::Brokers)),
                number(point.value(Metric::SharePercent)),
                in_words(point.typical_rounds()),
                number(point.value(Metric::Seconds)),
                self.paper_of(point, points).map_or("-".to_owned(), number),
                number(point.value(Metric::P99Ms)),
                number(point.deviation(Metric::P99Ms)),
                number(point.value(Metric::WorstP99Ms)),
                number(point.value(Metric::AccessP99Ms)),
                percent(point.value(Metric::Met)),
                percent(point.value(Metric::Fitted)),
                number(point.value(Metric::Burst)),
            ]);
        }
        table
    }

    /// What the paper states of a point of the first series.
    fn paper_of(&self, point: &Point, points: &[Point]) -> Option<f64> {
        let is_first = points.first().is_some_and(|first| first.series == point.series);
        let stated = self.values.iter().zip(&self.paper).find(|(value, _)| value.total_cmp(&point.value).is_eq());
        stated.filter(|_| is_first).map(|(_, stated)| *stated)
    }

    /// The main figure, if a series is drawn there, and those of the panels by their names.
    pub(super) fn figures(&self, compared: &[Compared], points: &[Point]) -> (Option<Figure>, Vec<(String, Figure)>) {
        let mut panels: Vec<Option<&String>> = Vec::new();
        for series in compared {
            if !panels.contains(&series.panel.as_ref()) {
                panels.push(series.panel.as_ref());
            }
        }
        let (mut main, mut named) = (None, Vec::new());
        for panel in panels {
            let drawn: Vec<&Compared> = compared.iter().filter(|series| series.panel.as_ref() == panel).collect();
            let figure = self.figure(panel, &drawn, points);
            match panel {
                None => main = Some(figure),
                Some(name) => named.push((name.clone(), figure)),
            }
        }
        (main, named)
    }

    fn figure(&self, panel: Option<&String>, drawn: &[&Compared], points: &[Point]) -> Figure {
        let of = |series: &Compared, third: fn(&Point, Metric) -> f64| -> Vec<[f64; 3]> {
            let own = points.iter().filter(|point| point.series == series.name);
            own.map(|point| [point.value, point.value(self.show), third(point, self.show)]).collect()
        };
        let lines = drawn.iter().map(|series| Series {
            name: series.name.clone(),
            points: of(series, Point::deviation),
            stroke: Stroke::Solid,
        });
        let mut series: Vec<Series> = lines.collect();
        let is_main = points.first().is_some_and(|first| drawn.iter().any(|series| series.name == first.series));
        if !self.paper.is_empty() && is_main {
            let points = self.values.iter().zip(&self.paper).map(|(value, stated)| [*value, *stated, 0.0]).collect();
            series.push(Series { name: "the paper".to_owned(), points, stroke: Stroke::Dashed });
        }
        for stated in self.stated.iter().filter(|stated| stated.panel.as_ref() == panel) {
            let points = stated.points.iter().map(|[value, stated]| [*value, *stated, 0.0]).collect();
            series.push(Series { name: stated.name.clone(), points, stroke: Stroke::Marks });
        }
        let y_scale = self.scale(&series);
        if self.show.is_delay() {
            let slo_ms = self.scenario.slo_us / 1e3;
            let points = self.values.iter().map(|value| [*value, slo_ms, 0.0]).collect();
            series.push(Series { name: "objective".to_owned(), points, stroke: Stroke::Dashed });
            // As in the paper's figures, the number of brokers stands beside each point.
            let brokers = |point: &Point, _: Metric| point.value(Metric::Brokers);
            let notes = drawn.iter().map(|series| Series {
                name: format!("{}: brokers", series.name),
                points: of(series, brokers),
                stroke: Stroke::Notes,
            });
            series.extend(notes);
        }
        let of_panel = panel.map(|panel| format!(" ({panel})")).unwrap_or_default();
        Figure {
            title: format!("{} by {}{of_panel}", self.show.title(), self.axis.title()),
            x_label: self.axis.title().to_owned(),
            y_label: self.show.title().to_owned(),
            y_scale,
            series,
        }
    }

    fn scale(&self, series: &[Series]) -> Scale {
        let ys = || series.iter().flat_map(|series| &series.points).map(|point| point[1]).filter(|y| y.is_finite());
        let (low, high) = (ys().fold(f64::INFINITY, f64::min), ys().fold(0.0, f64::max));
        if self.show.is_delay() && low > 0.0 && high > LOG_FROM * low { Scale::Log } else { Scale::Linear }
    }
}

fn percent(share: f64) -> String {
    format!("{:.0}%", 100.0 * share)
}
