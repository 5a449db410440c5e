//! Figures as SVG.

use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use serde::Serialize;

use crate::table::number;

const SIZE: (u32, u32) = (820, 500);
/// Dark enough on white, and told apart by colour-blind readers: Okabe and Ito's palette, without its yellow.
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(90, 90, 90),
];

/// Of what is written beside points.
const NOTES: RGBColor = RGBColor(60, 60, 60);

/// Lines over common axes.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Figure {
    /// Above it.
    pub title: String,
    /// Below it, with the unit.
    pub x_label: String,
    /// To its left, with the unit.
    pub y_label: String,
    /// How y grows.
    pub y_scale: Scale,
    /// What is drawn.
    pub series: Vec<Series>,
}

/// How an axis grows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    /// By equal steps.
    Linear,
    /// By equal factors; what is not above zero is left out.
    Log,
}

/// One line.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Series {
    /// In the legend.
    pub name: String,
    /// x, y and, above and below y, its standard deviation or zero; of notes, what is written there.
    pub points: Vec<[f64; 3]>,
    /// How it looks.
    pub stroke: Stroke,
}

/// How a line looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stroke {
    /// What was measured: a line with a dot at each point.
    Solid,
    /// What it is compared with.
    Dashed,
    /// Single points that are compared with: a cross at each.
    Marks,
    /// No line: the third number of each point is written beside it.
    Notes,
}

/// A figure could not be drawn.
#[derive(Debug, thiserror::Error)]
#[error("the figure `{title}` cannot be drawn")]
pub struct DrawError {
    /// Which.
    pub title: String,
    /// Why.
    #[source]
    pub source: Box<DrawingAreaErrorKind<std::io::Error>>,
}

impl Figure {
    /// The figure as an SVG document; its text uses the reader's own sans-serif font.
    ///
    /// # Errors
    /// If the drawing library fails, such as on numbers that are not finite.
    pub fn to_svg(&self) -> Result<String, DrawError> {
        let mut svg = String::new();
        let drawn = self.draw(&mut svg);
        drawn.map_err(|source| DrawError { title: self.title.clone(), source: Box::new(source) })?;
        Ok(svg)
    }

    fn draw(&self, svg: &mut String) -> Result<(), DrawingAreaErrorKind<std::io::Error>> {
        let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let (low, high) = self.extent(1);
        match self.y_scale {
            Scale::Linear => self.draw_on(&area, 0f64.min(low)..high * 1.05)?,
            Scale::Log => self.draw_on(&area, (low / 1.3..high * 1.3).log_scale())?,
        }
        area.present()
    }

    fn draw_on<Y>(
        &self,
        area: &DrawingArea<SVGBackend<'_>, Shift>,
        y: Y,
    ) -> Result<(), DrawingAreaErrorKind<std::io::Error>>
    where
        Y: AsRangedCoord<Value = f64>,
        Y::CoordDescType: ValueFormatter<f64>,
    {
        let (left, right) = self.extent(0);
        let margin = (right - left).max(1e-9) * 0.04;
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, ("sans-serif", 19))
            .margin(14)
            .x_label_area_size(44)
            .y_label_area_size(68)
            .build_cartesian_2d(left - margin..right + margin, y)?;
        chart
            .configure_mesh()
            .x_desc(&self.x_label)
            .y_desc(&self.y_label)
            .axis_desc_style(("sans-serif", 16))
            .label_style(("sans-serif", 14))
            .light_line_style(RGBColor(240, 240, 240))
            .x_labels(self.x_labels())
            .x_label_formatter(&|x| number(*x))
            .y_label_formatter(&|y| number(*y))
            .draw()?;
        for (series, colour) in self.series.iter().zip(COLOURS.iter().cycle()) {
            self.draw_one(&mut chart, series, *colour)?;
        }
        chart
            .configure_series_labels()
            .position(self.legend_position())
            .label_font(("sans-serif", 14))
            .background_style(WHITE.mix(0.85))
            .border_style(RGBColor(200, 200, 200))
            .draw()
    }

    fn draw_one<Y: Ranged<ValueType = f64>>(
        &self,
        chart: &mut ChartContext<'_, SVGBackend<'_>, Cartesian2d<RangedCoordf64, Y>>,
        series: &Series,
        colour: RGBColor,
    ) -> Result<(), DrawingAreaErrorKind<std::io::Error>> {
        let style = colour.stroke_width(2);
        let drawn = series.points.iter().filter(|point| self.shows(point));
        let line = drawn.clone().map(|&[x, y, _]| (x, y));
        match series.stroke {
            Stroke::Solid => chart
                .draw_series(LineSeries::new(line.clone(), style))?
                .label(&series.name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 22, y)], style)),
            Stroke::Dashed => chart
                .draw_series(DashedLineSeries::new(line.clone(), 7, 5, style))?
                .label(&series.name)
                .legend(move |(x, y)| DashedPathElement::new(vec![(x, y), (x + 22, y)], 5, 3, style)),
            Stroke::Marks => chart
                .draw_series(line.clone().map(|at| Cross::new(at, 6, style)))?
                .label(&series.name)
                .legend(move |(x, y)| Cross::new((x + 11, y), 5, style)),
            Stroke::Notes => {
                let text = ("sans-serif", 13).into_font().color(&NOTES);
                let note = |&[x, y, there]: &[f64; 3]| {
                    EmptyElement::at((x, y)) + Text::new(number(there), (6, -15), text.clone())
                };
                chart.draw_series(drawn.clone().map(note))?
            }
        };
        if series.stroke == Stroke::Solid {
            chart.draw_series(line.map(|at| Circle::new(at, 4, colour.filled())))?;
            let bars = drawn.filter(|point| point[2] > 0.0).map(|&[x, y, deviation]| {
                let low = if self.y_scale == Scale::Log { (y - deviation).max(y / 10.0) } else { y - deviation };
                PathElement::new([(x, low), (x, y + deviation)], style)
            });
            chart.draw_series(bars)?;
        }
        Ok(())
    }

    /// Labels on the x axis: one for each whole number if x counts a few things.
    fn x_labels(&self) -> usize {
        let mut xs: Vec<f64> = self.series.iter().flat_map(|series| &series.points).map(|point| point[0]).collect();
        xs.sort_unstable_by(f64::total_cmp);
        xs.dedup();
        let counts = xs.iter().all(|x| x.fract() == 0.0) && xs.len() < 20;
        if counts { xs.len() } else { 10 }
    }

    /// The upper corner on the side where the lines are low.
    fn legend_position(&self) -> SeriesLabelPosition {
        let shown =
            |series: &Series| series.points.iter().copied().filter(|point| self.shows(point)).collect::<Vec<_>>();
        let falls =
            |points: &[[f64; 3]]| points.first().zip(points.last()).is_some_and(|(first, last)| first[1] > last[1]);
        let falling = self.series.iter().filter(|series| falls(&shown(series))).count();
        if 2 * falling > self.series.len() { SeriesLabelPosition::UpperRight } else { SeriesLabelPosition::UpperLeft }
    }

    fn shows(&self, [x, y, _]: &[f64; 3]) -> bool {
        x.is_finite() && y.is_finite() && (self.y_scale == Scale::Linear || *y > 0.0)
    }

    /// The least and the greatest of a coordinate, of what is shown; 1 to 2 if that is nothing.
    fn extent(&self, coordinate: usize) -> (f64, f64) {
        let points = self.series.iter().flat_map(|series| &series.points).filter(|point| self.shows(point));
        let (low, high) = points.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), point| {
            (low.min(point[coordinate]), high.max(point[coordinate]))
        });
        if low > high {
            (1.0, 2.0)
        } else if low >= high {
            (low, low + low.abs().max(1.0))
        } else {
            (low, high)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(y_scale: Scale, points: &[[f64; 3]]) -> Figure {
        Figure {
            title: "A title".to_owned(),
            x_label: "brokers".to_owned(),
            y_label: "latency, ms".to_owned(),
            y_scale,
            series: vec![
                Series { name: "measured".to_owned(), points: points.to_vec(), stroke: Stroke::Solid },
                Series { name: "exact".to_owned(), points: points.to_vec(), stroke: Stroke::Dashed },
            ],
        }
    }

    #[test]
    fn a_figure_has_its_words_and_every_point() {
        for scale in [Scale::Linear, Scale::Log] {
            let svg = figure(scale, &[[1.0, 0.2, 0.01], [2.0, 14.7, 0.5], [3.0, 4.0, 0.0]]).to_svg().unwrap();
            for word in ["A title", "brokers", "latency, ms", "measured", "exact"] {
                assert!(svg.contains(word), "{word}");
            }
            assert_eq!(svg.matches("<circle").count(), 3);
        }
    }

    #[test]
    fn single_points_have_crosses_and_notes_are_written_beside_them() {
        let mut marked = figure(Scale::Linear, &[[1.0, 0.2, 0.0], [2.0, 14.7, 0.0]]);
        let points = vec![[1.0, 0.2, 41.0], [2.0, 14.7, 42.0]];
        marked.series.push(Series { name: "stated".to_owned(), points: vec![[2.0, 3.0, 0.0]], stroke: Stroke::Marks });
        marked.series.push(Series { name: "beside".to_owned(), points, stroke: Stroke::Notes });
        let svg = marked.to_svg().unwrap();
        assert!(svg.contains("stated") && !svg.contains("beside"));
        assert!(svg.contains("41") && svg.contains("42"));
    }

    #[test]
    fn what_cannot_be_shown_is_left_out() {
        let svg = figure(Scale::Log, &[[1.0, 0.0, 0.0], [2.0, f64::INFINITY, 0.0], [3.0, 4.0, 9.0]]).to_svg().unwrap();
        assert_eq!(svg.matches("<circle").count(), 1);
        assert!(figure(Scale::Linear, &[]).to_svg().is_ok());
    }
}
