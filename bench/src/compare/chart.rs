//! A chart by hand: for each case, how many times as good as the best peer gapless is.
//!
//! The scale is logarithmic, as ratios are: twice as good lies as far to the right of the line
//! as half as good lies to the left. Colours are in the middle, so that the chart can be read
//! on white and on black; the background is left to the page.

use std::fmt::Write as _;

use super::report::{Case, Report};
use super::show::ratio;

const WIDTH: f64 = 960.0;
const LABEL: f64 = 380.0;
const RIGHT: f64 = 90.0;
const TOP: f64 = 64.0;
const ROW: f64 = 22.0;
const GROUP: f64 = 14.0;
const BAR: f64 = 13.0;

const TEXT: &str = "#7d8590";
const BETTER: &str = "#2f9e6e";
const WORSE: &str = "#d9743f";

/// The chart, as a file of its own.
pub(super) fn svg(report: &Report) -> String {
    let bars: Vec<(&Case, f64, String)> = report.cases.iter().flat_map(bars).collect();
    let reach = bars.iter().map(|(_, ratio, _)| ratio.log10().abs()).fold(0.5, f64::max).ceil();
    let scale = Scale { reach };
    let mut body = String::new();
    let mut y = TOP;
    let mut work = "";
    for (case, value, name) in &bars {
        if case.work != work && !work.is_empty() {
            y += GROUP;
        }
        work = &case.work;
        body.push_str(&bar(&scale, y, *value, name));
        y += ROW;
    }
    let height = y + 24.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         width=\"{WIDTH}\" height=\"{height}\" role=\"img\" font-family=\"system-ui, sans-serif\" \
         font-size=\"12\">\n<title>gapless beside the best peer, case by case</title>\n"
    );
    let _ = writeln!(
        out,
        "<text x=\"12\" y=\"22\" fill=\"{TEXT}\" font-size=\"15\" font-weight=\"600\">\
         How many times as good as the best peer (medians; right of the line is better)</text>"
    );
    out.push_str(&scale.lines(y));
    out.push_str(&body);
    out.push_str("</svg>\n");
    out
}

/// The bars of a case: one for each way in which gapless took part.
fn bars(case: &Case) -> Vec<(&Case, f64, String)> {
    let ours: Vec<_> = case.lines.iter().filter(|line| !line.is_peer).collect();
    let named = |name: &str| match name.split_once(", ") {
        Some((_, batches)) => format!("{}, {batches}", case.title),
        None => case.title.clone(),
    };
    ours.iter()
        .filter_map(|line| case.ratio(line).map(|ratio| (case, ratio, named(&line.name))))
        .collect()
}

fn bar(scale: &Scale, y: f64, value: f64, name: &str) -> String {
    let (one, at) = (scale.x(1.0), scale.x(value));
    let (from, width) = (one.min(at), (one - at).abs().max(1.0));
    let colour = if value >= 1.0 { BETTER } else { WORSE };
    let (value_x, anchor) = if value >= 1.0 { (at + 5.0, "start") } else { (at - 5.0, "end") };
    let text_y = y + BAR - 2.0;
    let label_x = LABEL - 12.0;
    format!(
        "<text x=\"{label_x}\" y=\"{text_y}\" text-anchor=\"end\" fill=\"{TEXT}\">{}</text>\
         <rect x=\"{from:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{BAR}\" rx=\"2\" \
         fill=\"{colour}\"/>\
         <text x=\"{value_x:.1}\" y=\"{text_y}\" text-anchor=\"{anchor}\" fill=\"{TEXT}\">{} ×</text>\n",
        escaped(name),
        ratio(value),
    )
}

/// Where a ratio lies: `reach` powers of ten to each side of one.
struct Scale {
    reach: f64,
}

impl Scale {
    fn x(&self, ratio: f64) -> f64 {
        let part = (ratio.log10() / self.reach + 1.0) / 2.0;
        let (from, to) = (LABEL + 45.0, WIDTH - RIGHT);
        from + part.clamp(0.0, 1.0) * (to - from)
    }

    fn lines(&self, bottom: f64) -> String {
        let mut out = String::new();
        let powers = self.reach as i32;
        for power in -powers..=powers {
            let value = 10_f64.powi(power);
            let x = self.x(value);
            let (width, dash) = if power == 0 { ("1.5", "") } else { ("0.7", "3 4") };
            let top = TOP - 8.0;
            let label_y = TOP - 14.0;
            let _ = writeln!(
                out,
                "<line x1=\"{x:.1}\" y1=\"{top}\" x2=\"{x:.1}\" y2=\"{bottom}\" stroke=\"{TEXT}\" \
                 stroke-width=\"{width}\" stroke-dasharray=\"{dash}\"/>\
                 <text x=\"{x:.1}\" y=\"{label_y}\" text-anchor=\"middle\" fill=\"{TEXT}\">{} ×</text>",
                power_name(power),
            );
        }
        out
    }
}

fn power_name(power: i32) -> String {
    let digits = 10_u64.pow(power.unsigned_abs());
    if power < 0 { format!("1/{digits}") } else { digits.to_string() }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::report::tests::sample;

    #[test]
    fn each_case_has_a_bar_to_the_side_on_which_it_belongs() {
        let svg = svg(&sample());
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        assert_eq!(svg.matches("<rect ").count(), 2);
        assert_eq!(svg.matches(BETTER).count(), 1);
        assert_eq!(svg.matches(WORSE).count(), 1);
        assert!(svg.contains(">live 1 → 1<"), "{svg}");
        assert!(svg.contains(">0.67 ×<"), "{svg}");
    }

    #[test]
    fn the_scale_is_even_in_ratios() {
        let scale = Scale { reach: 2.0 };
        let [low, one, high] = [0.1, 1.0, 10.0].map(|ratio| scale.x(ratio));
        assert!((high - one - (one - low)).abs() < 1e-9);
        assert_eq!(scale.x(1e9), scale.x(100.0));
        assert_eq!([-2, 0, 1].map(power_name), ["1/100", "1", "10"]);
    }

    #[test]
    fn without_peers_there_is_an_empty_chart() {
        let mut report = sample();
        report.cases.iter_mut().for_each(|case| case.lines.truncate(1));
        assert!(!svg(&report).contains("<rect "));
    }

    #[test]
    fn signs_that_mean_something_are_escaped() {
        assert_eq!(escaped("a < b & c"), "a &lt; b &amp; c");
    }
}
