//! Figures in columns: what was measured, what the machine could do, and whether it is enough.
//!
//! Columns are work, figure, hardware, ratio, goal, ok, notes; a column that was never filled is not
//! printed. The ratio is figure over hardware, and the goal is mostly about the ratio: so it
//! holds on every machine, and a table needs no figure from another run. The few promises
//! that are numbers of their own, such as the time to open a store, are goals about the
//! figure.

use std::fmt;

use serde_json::{Value, json};

/// What a number counts; decides how it is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Events per second: more is better.
    PerSecond,
    /// Bytes per second: more is better.
    BytesPerSecond,
    /// Microseconds: less is better.
    Micros,
    /// Bytes: less is better.
    Bytes,
    /// A bare number.
    Count,
}

/// A number with its unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    /// The number.
    pub value: f64,
    /// What it counts.
    pub unit: Unit,
}

/// What a ratio, or a figure, must reach.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// A ratio of this or more.
    AtLeast(f64),
    /// A ratio of this or less.
    AtMost(f64),
    /// A figure of this or less, in the figure's own unit.
    FigureAtMost(f64),
}

/// One line of a table.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    work: String,
    figure: Figure,
    hardware: Option<Figure>,
    goal: Option<Goal>,
    beside: Vec<(&'static str, Figure)>,
    notes: String,
}

/// A titled list of rows, printed in columns as wide as they need.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    title: String,
    rows: Vec<Row>,
}

impl Figure {
    /// A rate of events.
    pub fn per_second(value: f64) -> Self {
        Self { value, unit: Unit::PerSecond }
    }

    /// A rate of bytes.
    pub fn bytes_per_second(value: f64) -> Self {
        Self { value, unit: Unit::BytesPerSecond }
    }

    /// A time.
    pub fn micros(value: f64) -> Self {
        Self { value, unit: Unit::Micros }
    }

    /// A size.
    pub fn bytes(value: f64) -> Self {
        Self { value, unit: Unit::Bytes }
    }

    /// A bare number.
    pub fn count(value: f64) -> Self {
        Self { value, unit: Unit::Count }
    }
}

impl Goal {
    /// Whether a figure and its ratio reach it.
    fn is_met(self, figure: Figure, ratio: Option<f64>) -> bool {
        match self {
            Self::AtLeast(least) => ratio.is_some_and(|ratio| ratio >= least),
            Self::AtMost(most) => ratio.is_some_and(|ratio| ratio <= most),
            Self::FigureAtMost(most) => figure.value <= most,
        }
    }

    /// The goal in words; `unit` is its figure's.
    fn text(self, unit: Unit) -> String {
        match self {
            Self::AtLeast(least) => format!("≥ {}", three_digits(least)),
            Self::AtMost(most) => format!("≤ {}", three_digits(most)),
            Self::FigureAtMost(value) => format!("≤ {}", Figure { value, unit }),
        }
    }
}

impl Row {
    /// A row with a figure and nothing to hold it against.
    pub fn new(work: impl Into<String>, figure: Figure) -> Self {
        Self {
            work: work.into(),
            figure,
            hardware: None,
            goal: None,
            beside: Vec::new(),
            notes: String::new(),
        }
    }

    /// Adds what it is held against: the machine's own figure, or a peer's.
    ///
    /// # Panics
    ///
    /// When the two figures count different things.
    #[must_use]
    pub fn against(mut self, hardware: Figure) -> Self {
        assert_eq!(self.figure.unit, hardware.unit, "a ratio is taken of like things");
        self.hardware = Some(hardware);
        self
    }

    /// Adds what the ratio must reach.
    #[must_use]
    pub fn goal(mut self, goal: Goal) -> Self {
        self.goal = Some(goal);
        self
    }

    /// Adds a further figure of the same work, such as a percentile; printed with the notes.
    #[must_use]
    pub fn beside(mut self, name: &'static str, figure: Figure) -> Self {
        self.beside.push((name, figure));
        self
    }

    /// Adds words in the last column.
    #[must_use]
    pub fn notes(mut self, notes: impl Into<String>) -> Self {
        self.notes = notes.into();
        self
    }

    /// Figure over hardware; none if there is no hardware figure or it is zero.
    pub fn ratio(&self) -> Option<f64> {
        let hardware = self.hardware.filter(|hardware| hardware.value > 0.0)?;
        Some(self.figure.value / hardware.value)
    }

    /// Whether the goal is reached; none without a goal. A goal without a ratio is not.
    pub fn is_ok(&self) -> Option<bool> {
        self.goal.map(|goal| goal.is_met(self.figure, self.ratio()))
    }

    fn cells(&self) -> [String; COLUMNS] {
        let or_empty = |text: Option<String>| text.unwrap_or_default();
        [
            self.work.clone(),
            self.figure.to_string(),
            or_empty(self.hardware.map(|hardware| hardware.to_string())),
            or_empty(self.ratio().map(|ratio| format!("{} ×", three_digits(ratio)))),
            or_empty(self.goal.map(|goal| goal.text(self.figure.unit))),
            or_empty(self.is_ok().map(|ok| if ok { "yes" } else { "NO" }.to_owned())),
            self.beside_and_notes(),
        ]
    }

    fn beside_and_notes(&self) -> String {
        let beside = self.beside.iter().map(|(name, figure)| format!("{name} {figure}"));
        let notes = (!self.notes.is_empty()).then(|| self.notes.clone());
        beside.chain(notes).collect::<Vec<_>>().join(", ")
    }

    fn to_json(&self) -> Value {
        let beside = self.beside.iter().map(|(name, figure)| {
            let figure = json!({ "figure": figure.value, "unit": figure.unit.name() });
            ((*name).to_owned(), figure)
        });
        json!({
            "work": self.work,
            "figure": self.figure.value,
            "unit": self.figure.unit.name(),
            "hardware": self.hardware.map(|hardware| hardware.value),
            "ratio": self.ratio(),
            "goal": self.goal.map(|goal| goal.text(self.figure.unit)),
            "ok": self.is_ok(),
            "beside": Value::Object(beside.collect()),
            "notes": self.notes,
        })
    }
}

impl Table {
    /// A table without rows.
    pub fn new(title: impl Into<String>) -> Self {
        Self { title: title.into(), rows: Vec::new() }
    }

    /// Adds a row at the end.
    pub fn push(&mut self, row: Row) {
        self.rows.push(row);
    }

    /// The rows, in the order they came.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Whether every goal is reached.
    pub fn is_ok(&self) -> bool {
        self.rows.iter().all(|row| row.is_ok() != Some(false))
    }

    /// The table for programs: plain numbers with their units.
    pub fn to_json(&self) -> Value {
        let rows: Vec<Value> = self.rows.iter().map(Row::to_json).collect();
        json!({ "title": self.title, "ok": self.is_ok(), "rows": rows })
    }
}

const COLUMNS: usize = 7;

const HEADINGS: [&str; COLUMNS] = ["work", "figure", "hardware", "ratio", "goal", "ok", "notes"];

/// Numbers stand to the right of their column, words to the left.
const TO_THE_RIGHT: [bool; COLUMNS] = [false, true, true, true, true, false, false];

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headings = HEADINGS.map(str::to_owned);
        let rows: Vec<[String; COLUMNS]> = self.rows.iter().map(Row::cells).collect();
        let shown: Vec<usize> = (0..COLUMNS)
            .filter(|&column| column < 2 || rows.iter().any(|cells| !cells[column].is_empty()))
            .collect();
        let width = |column: usize| {
            let cells = rows.iter().chain([&headings]).map(|cells| cells[column].chars().count());
            cells.max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..COLUMNS).map(width).collect();

        writeln!(f, "{}", self.title)?;
        for cells in [&headings].into_iter().chain(&rows) {
            let mut line = String::new();
            for &column in &shown {
                let cell = &cells[column];
                let width = widths[column];
                let padded = if TO_THE_RIGHT[column] {
                    format!("  {cell:>width$}")
                } else {
                    format!("  {cell:<width$}")
                };
                line.push_str(&padded);
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

impl Unit {
    fn name(self) -> &'static str {
        match self {
            Self::PerSecond => "per_second",
            Self::BytesPerSecond => "bytes_per_second",
            Self::Micros => "micros",
            Self::Bytes => "bytes",
            Self::Count => "count",
        }
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.value;
        let text = match self.unit {
            Unit::PerSecond => scaled(value, 1e3, &["/s", "k/s", "M/s", "G/s"]),
            Unit::BytesPerSecond => scaled(value, 1e3, &["B/s", "kB/s", "MB/s", "GB/s", "TB/s"]),
            Unit::Micros => scaled(value, 1e3, &["µs", "ms", "s"]),
            Unit::Bytes => scaled(value, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB"]),
            Unit::Count => three_digits(value),
        };
        f.pad(&text)
    }
}

/// A value in the largest of the given units that leaves at least one before the point.
fn scaled(value: f64, step: f64, units: &[&str]) -> String {
    let mut value = value;
    let mut units = units.iter();
    let mut unit = units.next().copied().unwrap_or_default();
    for larger in units {
        if value < step {
            break;
        }
        value /= step;
        unit = larger;
    }
    format!("{} {unit}", three_digits(value))
}

/// About three digits that mean something.
fn three_digits(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.1 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_printed_in_a_unit_one_can_read() {
        assert_eq!(Figure::per_second(618_000.0).to_string(), "618 k/s");
        assert_eq!(Figure::bytes_per_second(1.34e9).to_string(), "1.34 GB/s");
        assert_eq!(Figure::micros(171.2).to_string(), "171 µs");
        assert_eq!(Figure::micros(25_600.0).to_string(), "25.6 ms");
        assert_eq!(Figure::bytes(4096.0).to_string(), "4.00 KiB");
        assert_eq!(Figure::count(0.0).to_string(), "0");
    }

    #[test]
    fn a_ratio_decides_about_the_goal() {
        let row = Row::new("a", Figure::per_second(50.0)).against(Figure::per_second(100.0));
        assert_eq!(row.ratio(), Some(0.5));
        assert_eq!(row.is_ok(), None);
        assert_eq!(row.clone().goal(Goal::AtLeast(0.5)).is_ok(), Some(true));
        assert_eq!(row.clone().goal(Goal::AtLeast(0.6)).is_ok(), Some(false));
        assert_eq!(row.goal(Goal::AtMost(0.4)).is_ok(), Some(false));
    }

    #[test]
    fn a_goal_without_a_ratio_is_not_reached() {
        let row = Row::new("a", Figure::per_second(50.0)).goal(Goal::AtLeast(1.0));
        assert_eq!(row.is_ok(), Some(false));
        let nothing = row.against(Figure::per_second(0.0));
        assert_eq!(nothing.is_ok(), Some(false));
    }

    #[test]
    fn a_goal_can_be_about_the_figure_itself() {
        let row = Row::new("open", Figure::micros(0.9e6)).goal(Goal::FigureAtMost(1e6));
        assert_eq!(row.is_ok(), Some(true));
        assert_eq!(row.to_json()["goal"], json!("≤ 1.00 s"));
        let row = Row::new("open", Figure::micros(1.1e6)).goal(Goal::FigureAtMost(1e6));
        assert_eq!(row.is_ok(), Some(false));
    }

    #[test]
    fn columns_line_up_and_empty_ones_are_left_out() {
        let mut table = Table::new("flush");
        table.push(Row::new("one", Figure::micros(171.0)));
        table.push(Row::new("eleven", Figure::micros(2.5)).notes("p99 3 µs"));
        let expected =
            "flush\n  work     figure  notes\n  one      171 µs\n  eleven  2.50 µs  p99 3 µs\n";
        assert_eq!(table.to_string(), expected);
    }

    #[test]
    fn one_goal_missed_makes_the_table_not_ok() {
        let mut table = Table::new("goals");
        let row = Row::new("a", Figure::count(1.0)).against(Figure::count(2.0));
        table.push(row.clone().goal(Goal::AtLeast(0.4)));
        assert!(table.is_ok());
        table.push(row.goal(Goal::AtLeast(0.6)));
        assert!(!table.is_ok());
        assert!(table.to_string().contains("NO"));
        assert_eq!(table.to_json()["rows"][1]["ok"], json!(false));
        assert_eq!(table.to_json()["rows"][0]["ratio"], json!(0.5));
    }

    #[test]
    fn programs_get_every_figure_as_a_number() {
        let mut table = Table::new("flush");
        table.push(Row::new("a", Figure::per_second(2.0)).beside("p99", Figure::micros(7.0)));
        let row = &table.to_json()["rows"][0];
        assert_eq!(row["figure"], json!(2.0));
        assert_eq!(row["beside"]["p99"], json!({ "figure": 7.0, "unit": "micros" }));
    }
}
