//! Line plots as SVG without fonts or scripts, for light and dark pages.

use std::fmt::Write;

/// A line plot.
#[derive(Clone, Debug)]
pub struct Plot {
    /// Title.
    pub title: String,
    /// Second line of the title.
    pub subtitle: String,
    /// Horizontal axis.
    pub x: Axis,
    /// Vertical axis.
    pub y: Axis,
    /// Lines.
    pub series: Vec<Series>,
}

/// An axis.
#[derive(Clone, Debug)]
pub struct Axis {
    /// Measured quantity.
    pub label: String,
    /// True if logarithmic.
    pub log: bool,
}

/// A line with a band around it.
#[derive(Clone, Debug)]
pub struct Series {
    /// Name, shown at the end of the line.
    pub name: String,
    /// Index of the colour.
    pub colour: usize,
    /// Points, ordered by x.
    pub points: Vec<Point>,
}

/// A point of a line, with the band around it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Position on the horizontal axis.
    pub x: f64,
    /// Position on the vertical axis.
    pub y: f64,
    /// Lower end of the band.
    pub low: f64,
    /// Upper end of the band.
    pub high: f64,
}

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 396.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 560.0;
const TOP: f64 = 56.0;
const BOTTOM: f64 = 346.0;
/// Smallest distance between two names at the ends of lines.
const LINE: f64 = 15.0;

/// Seven colours of Okabe and Ito, which colour-blind readers can tell apart on light and dark pages, and eight more.
pub(super) const COLOURS: [&str; 15] = [
    "#0072b2", "#56b4e9", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#8c6bb1", "#b15928", "#66a61e", "#7f7f7f",
    "#e7298a", "#b8a900", "#44aa99", "#882255", "#6633ff",
];

const STYLE: &str = "\
.plot{font:13px system-ui,sans-serif}.plot text{fill:#333}.plot .title{font-weight:600;font-size:14px}\
.plot .small{font-size:12px;opacity:.8}.plot .grid{stroke:#8884;stroke-width:1}.plot .line{fill:none;stroke-width:2}.plot .band{opacity:.18}\
@media(prefers-color-scheme:dark){.plot text{fill:#ddd}}";

/// Mapping from values to positions on an axis.
struct Scale {
    log: bool,
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Scale {
    fn new(axis: &Axis, values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let usable = values.filter(|value| value.is_finite() && (!axis.log || *value > 0.0));
        let (low, high) = usable.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
        let (low, high) = if low > high { (1.0, 2.0) } else { (low, high) };
        let (low, high) = if axis.log { (low.log10(), high.log10()) } else { (low.min(0.0), high) };
        let high = if high - low < 1e-9 { low + 1.0 } else { high };
        Self { log: axis.log, low, high, from, to }
    }

    fn place(&self, value: f64) -> f64 {
        // Non-positive values are drawn at the edge of a logarithmic axis.
        let value = if self.log { value.max(f64::MIN_POSITIVE).log10() } else { value };
        self.from + (self.to - self.from) * ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
    }

    /// Returns the values with a grid line.
    fn ticks(&self) -> Vec<f64> {
        if self.log {
            let powers = self.low.ceil() as i32..=self.high.floor() as i32;
            let few = powers.clone().count() < 3;
            let steps: &[f64] = if few { &[1.0, 2.0, 5.0] } else { &[1.0] };
            let powers = self.low.floor() as i32..=self.high.floor() as i32;
            let all = powers.flat_map(|power| steps.iter().map(move |step| step * 10_f64.powi(power)));
            return all.filter(|tick| (self.low - 1e-9..=self.high + 1e-9).contains(&tick.log10())).collect();
        }
        let rough = (self.high - self.low) / 5.0;
        let power = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|step| step * power).find(|step| *step >= rough);
        let step = step.unwrap_or(rough);
        let first = (self.low / step).ceil() as i64;
        let last = (self.high / step + 1e-9).floor() as i64;
        (first..=last).map(|n| n as f64 * step).collect()
    }
}

impl Plot {
    /// Renders an SVG element, which is also a valid file.
    pub fn svg(&self) -> String {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let x = Scale::new(&self.x, points().map(|point| point.x), LEFT, RIGHT);
        let y = Scale::new(&self.y, points().flat_map(|point| [point.low, point.y, point.high]), BOTTOM, TOP);
        let mut svg = format!(
            "<svg class=\"plot\" xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
             aria-label=\"{title}\"><style>{STYLE}</style><text class=\"title\" x=\"{LEFT}\" y=\"20\">{title}</text>\
             <text class=\"small\" x=\"{LEFT}\" y=\"38\">{subtitle}</text>",
            title = escape(&self.title),
            subtitle = escape(&self.subtitle)
        );
        draw_ticks(&mut svg, &x, &y);
        self.label_axes(&mut svg);
        for series in &self.series {
            series.draw(&mut svg, &x, &y);
        }
        self.name_lines(&mut svg, &y);
        svg.push_str("</svg>\n");
        svg
    }

    fn label_axes(&self, svg: &mut String) {
        let middle = f64::midpoint(LEFT, RIGHT);
        let _ = write!(
            svg,
            "<text x=\"{middle}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\
             <text transform=\"translate(14 {:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            HEIGHT - 8.0,
            escape(&self.x.label),
            f64::midpoint(TOP, BOTTOM),
            escape(&self.y.label)
        );
    }

    /// Writes names at the ends of lines, moved apart where they would overlap.
    fn name_lines(&self, svg: &mut String, y: &Scale) {
        let end = |series: &Series| series.points.last().map(|point| y.place(point.y));
        let mut names: Vec<_> = self.series.iter().filter_map(|series| Some((end(series)?, series))).collect();
        names.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut floor = TOP;
        for (at, ..) in &mut names {
            *at = at.max(floor);
            floor = *at + LINE;
        }
        let mut ceiling = BOTTOM;
        for (at, ..) in names.iter_mut().rev() {
            *at = at.min(ceiling);
            ceiling = *at - LINE;
        }
        for (at, series) in names {
            let colour = series.colour();
            let _ = write!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\" style=\"fill:{colour};font-weight:600\">{}</text>",
                RIGHT + 10.0,
                at + 4.0,
                escape(&series.name)
            );
        }
    }
}

/// Draws the grid with its labels.
fn draw_ticks(svg: &mut String, x: &Scale, y: &Scale) {
    for tick in x.ticks() {
        let at = x.place(tick);
        let _ = write!(
            svg,
            "<path class=\"grid\" d=\"M{at:.1} {TOP}V{BOTTOM}\"/>\
             <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            BOTTOM + 18.0,
            format_number(tick)
        );
    }
    for tick in y.ticks() {
        let at = y.place(tick);
        let _ = write!(
            svg,
            "<path class=\"grid\" d=\"M{LEFT} {at:.1}H{RIGHT}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 8.0,
            at + 4.0,
            format_number(tick)
        );
    }
}

impl Series {
    fn colour(&self) -> &'static str {
        COLOURS[self.colour % COLOURS.len()]
    }

    fn draw(&self, svg: &mut String, x: &Scale, y: &Scale) {
        let colour = self.colour();
        let path = |values: &mut dyn Iterator<Item = (f64, f64)>| {
            values.fold(String::new(), |mut path, (at, value)| {
                let _ = write!(path, " {:.1},{:.1}", x.place(at), y.place(value));
                path
            })
        };
        let line = path(&mut self.points.iter().map(|point| (point.x, point.y)));
        if self.points.iter().any(|point| point.low < point.high) {
            let high = path(&mut self.points.iter().map(|point| (point.x, point.high)));
            let low = path(&mut self.points.iter().rev().map(|point| (point.x, point.low)));
            let _ = write!(svg, "<polygon class=\"band\" fill=\"{colour}\" points=\"{}{low}\"/>", high.trim_start());
        }
        let _ = write!(svg, "<polyline class=\"line\" stroke=\"{colour}\" points=\"{}\"/>", line.trim_start());
        if self.points.len() <= 12 {
            for point in &self.points {
                let (cx, cy) = (x.place(point.x), y.place(point.y));
                let label = format!("{}: {} at {}", self.name, format_number(point.y), format_number(point.x));
                let _ = write!(
                    svg,
                    "<circle cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"3.5\" fill=\"{colour}\"><title>{}</title></circle>",
                    escape(&label)
                );
            }
        }
    }
}

/// Formats a number with three significant digits.
pub fn format_number(value: f64) -> String {
    let magnitude = value.abs();
    if value == 0.0 {
        "0".into()
    } else if !(1e-4..1e6).contains(&magnitude) {
        format!("{value:.1e}").replace(".0e", "e")
    } else if magnitude >= 100.0 {
        format!("{value:.0}")
    } else {
        let decimals = (2 - magnitude.log10().floor() as i32).max(0) as usize;
        let text = format!("{value:.decimals$}");
        if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').into() } else { text }
    }
}

/// Escapes text for XML.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
