//! What is on the screen, and what keys change in it. It reads no clock and draws nothing.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::time::Duration;

use gapless_client::ClientInfo;
use gapless_core::shown::{GroupInfo, TopicInfo};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use serde_json::Value;

use super::sample::Sample;
use crate::cmd::topic;
use crate::output::{human_bytes, human_number, human_span};
use crate::show::readable;

/// Characters of a filter, at most.
const FILTER_MAX: usize = 64;
/// Rows that a page key moves.
const PAGE_ROWS: usize = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tab {
    Topics,
    Groups,
    Clients,
}

impl Tab {
    pub(super) const ALL: [Self; 3] = [Self::Topics, Self::Groups, Self::Clients];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Topics => "Topics",
            Self::Groups => "Groups",
            Self::Clients => "Clients",
        }
    }

    /// Headings and widths of the columns; the first takes what is left. They fit 80 columns.
    pub(super) fn columns(self) -> &'static [(&'static str, u16)] {
        match self {
            Self::Topics => {
                &[("TOPIC", 0), ("MSG/S", 9), ("MESSAGES", 13), ("LAST", 13), ("SIZE", 10)]
            }
            Self::Groups => &[
                ("GROUP", 0),
                ("ACK/S", 8),
                ("LAG", 10),
                ("IN FLIGHT", 9),
                ("DEAD", 7),
                ("OLDEST", 7),
                ("MEMBERS", 7),
                ("STATE", 7),
            ],
            Self::Clients => &[
                ("CLIENT", 0),
                ("ADDRESS", 21),
                ("FOLLOWS", 7),
                ("IN FLIGHT", 9),
                ("SINCE", 7),
                ("STATE", 10),
            ],
        }
    }

    /// Whether a column is set to the right, as numbers are.
    pub(super) fn is_number(self, column: usize) -> bool {
        !matches!((self, column), (_, 0) | (Self::Groups, 7) | (Self::Clients, 1 | 5))
    }
}

/// How a table is sorted, and what is selected in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) column: usize,
    pub(super) descending: bool,
    pub(super) selected: usize,
}

/// A cell: what is shown, and by what it is sorted if that is a number.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    pub(super) text: String,
    number: Option<f64>,
}

impl Cell {
    fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), number: None }
    }

    fn number(number: f64, text: String) -> Self {
        Self { text, number: Some(number) }
    }

    fn count(number: u64) -> Self {
        Self::number(number as f64, human_number(number))
    }

    fn rate(rate: Option<f64>) -> Self {
        match rate {
            Some(rate) => Self::number(rate, human_rate(rate)),
            None => Self::number(-1.0, "-".into()),
        }
    }

    fn order(&self, other: &Self) -> Ordering {
        match (self.number, other.number) {
            (Some(one), Some(other)) => one.total_cmp(&other),
            _ => self.text.cmp(&other.text),
        }
    }
}

/// A row, and what is said about it when it is selected.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) cells: Vec<Cell>,
    pub(super) detail: String,
    /// Something here needs a person.
    pub(super) alarm: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Stay,
    Quit,
}

/// See the head of the file.
pub(super) struct View {
    pub(super) server: String,
    pub(super) every: Duration,
    pub(super) colours: bool,
    pub(super) tab: Tab,
    places: [Place; 3],
    pub(super) filter: String,
    pub(super) typing: bool,
    pub(super) stopped: bool,
    pub(super) help: bool,
    pub(super) online: bool,
    /// Why there is no new sample.
    pub(super) trouble: Option<String>,
    pub(super) now: Option<Sample>,
    before: Option<Sample>,
}

impl View {
    pub(super) fn new(server: &str, every: Duration, colours: bool) -> Self {
        // What moves most comes first.
        let busiest = Place { column: 1, descending: true, selected: 0 };
        let names = Place { column: 0, descending: false, selected: 0 };
        Self {
            server: server.to_owned(),
            every,
            colours,
            tab: Tab::Topics,
            places: [busiest, Place { column: 2, ..busiest }, names],
            filter: String::new(),
            typing: false,
            stopped: false,
            help: false,
            online: true,
            trouble: None,
            now: None,
            before: None,
        }
    }

    pub(super) fn place(&self) -> Place {
        self.places[self.tab as usize]
    }

    fn place_mut(&mut self) -> &mut Place {
        &mut self.places[self.tab as usize]
    }

    pub(super) fn online(&mut self, online: bool, why: Option<String>) {
        self.online = online;
        if !online {
            self.trouble = why.or_else(|| Some("the connection is lost".to_owned()));
        }
    }

    /// A new sample is there. While the screen is stopped it is dropped.
    pub(super) fn sampled(&mut self, sample: Sample) {
        self.trouble = None;
        if !self.stopped {
            self.before = self.now.replace(sample);
        }
    }

    pub(super) fn failed(&mut self, why: &str) {
        self.trouble = Some(why.to_owned());
    }

    pub(super) fn key(&mut self, key: KeyEvent) -> Step {
        if key.kind == KeyEventKind::Release {
            return Step::Stay;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return Step::Quit;
        }
        if self.typing {
            self.type_filter(key.code);
            return Step::Stay;
        }
        if std::mem::take(&mut self.help) {
            return Step::Stay;
        }
        match key.code {
            KeyCode::Char('q') => return Step::Quit,
            KeyCode::Char('?' | 'h') => self.help = true,
            KeyCode::Char('1') => self.tab = Tab::Topics,
            KeyCode::Char('2') => self.tab = Tab::Groups,
            KeyCode::Char('3') => self.tab = Tab::Clients,
            KeyCode::Tab | KeyCode::Right => self.turn(1),
            KeyCode::BackTab | KeyCode::Left => self.turn(2),
            KeyCode::Char('>' | 's') => self.sort(1),
            KeyCode::Char('<') => self.sort(self.tab.columns().len() - 1),
            KeyCode::Char('r') => self.place_mut().descending ^= true,
            KeyCode::Char('/') => self.typing = true,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Char(' ') => self.stopped ^= true,
            KeyCode::Down | KeyCode::Char('j') => self.place_mut().selected += 1,
            KeyCode::PageDown => self.place_mut().selected += PAGE_ROWS,
            KeyCode::End | KeyCode::Char('G') => self.place_mut().selected = usize::MAX / 2,
            KeyCode::Up | KeyCode::Char('k') => self.up(1),
            KeyCode::PageUp => self.up(PAGE_ROWS),
            KeyCode::Home | KeyCode::Char('g') => self.place_mut().selected = 0,
            _ => {}
        }
        Step::Stay
    }

    fn type_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.typing = false,
            KeyCode::Esc => {
                self.typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Char(letter) if self.filter.chars().count() < FILTER_MAX => {
                self.filter.push(letter);
            }
            _ => {}
        }
    }

    fn turn(&mut self, by: usize) {
        self.tab = Tab::ALL[(self.tab as usize + by) % Tab::ALL.len()];
    }

    fn sort(&mut self, by: usize) {
        let columns = self.tab.columns().len();
        let place = self.place();
        let column = (place.column + by) % columns;
        // Of numbers the largest are wanted, of words the first.
        let descending = self.tab.is_number(column);
        *self.place_mut() = Place { column, descending, ..place };
    }

    fn up(&mut self, by: usize) {
        let place = self.place_mut();
        place.selected = place.selected.saturating_sub(by);
    }

    /// The rows of the table, filtered and sorted; the selection is brought into them.
    pub(super) fn rows(&mut self) -> Vec<Row> {
        let mut rows = match (&self.now, self.tab) {
            (None, _) => Vec::new(),
            (Some(now), Tab::Topics) => self.topics(now),
            (Some(now), Tab::Groups) => self.groups(now),
            (Some(now), Tab::Clients) => now.clients.iter().map(|info| client(info, now)).collect(),
        };
        let wanted = self.filter.to_lowercase();
        // Numbers have units, which are not names.
        let matches =
            |cell: &Cell| cell.number.is_none() && cell.text.to_lowercase().contains(&wanted);
        // What a client follows is in its detail; other details are sentences.
        let follows = self.tab == Tab::Clients;
        rows.retain(|row| {
            let by_detail = || follows && row.detail.to_lowercase().contains(&wanted);
            row.cells.iter().any(matches) || by_detail()
        });
        let place = self.place();
        rows.sort_by(|one, other| {
            let (a, b) = (&one.cells[place.column], &other.cells[place.column]);
            let order = if place.descending { b.order(a) } else { a.order(b) };
            // The same rates, as of many quiet topics, stand in the order of names.
            order.then_with(|| one.cells[0].text.cmp(&other.cells[0].text))
        });
        self.place_mut().selected = place.selected.min(rows.len().saturating_sub(1));
        rows
    }

    fn topics(&self, now: &Sample) -> Vec<Row> {
        let before = self.before.as_ref();
        let known: HashMap<u64, u64> = before
            .iter()
            .flat_map(|sample| &sample.topics)
            .map(|info| (info.id, info.next.0))
            .collect();
        let row = |info: &TopicInfo| {
            let last = info.next.0.saturating_sub(1);
            Row {
                cells: vec![
                    Cell::text(readable(info.name.as_str().as_bytes())),
                    Cell::rate(self.rate(now, known.get(&info.id).copied(), info.next.0)),
                    Cell::count(info.next.distance(info.first)),
                    Cell::count(last),
                    Cell::number(info.bytes as f64, human_bytes(info.bytes)),
                ],
                detail: topic::summary(&info.settings),
                alarm: false,
            }
        };
        now.topics.iter().map(row).collect()
    }

    fn groups(&self, now: &Sample) -> Vec<Row> {
        let before = self.before.as_ref();
        let known: HashMap<u64, u64> = before
            .iter()
            .flat_map(|sample| &sample.groups)
            .map(|info| (info.id, info.totals.acked))
            .collect();
        let row = |info: &GroupInfo| {
            let oldest = info.oldest_age;
            let oldest_cell = match oldest {
                Some(age) => Cell::number(age.as_secs_f64(), human_span(age)),
                None => Cell::number(-1.0, "-".into()),
            };
            Row {
                cells: vec![
                    Cell::text(readable(info.name.as_str().as_bytes())),
                    Cell::rate(self.rate(now, known.get(&info.id).copied(), info.totals.acked)),
                    Cell::count(info.lag),
                    Cell::count(info.counts.in_flight),
                    Cell::count(info.dead_letters),
                    oldest_cell,
                    Cell::count(info.members.len() as u64),
                    Cell::text(info.state.name()),
                ],
                detail: format!(
                    "reads {}: {}",
                    info.settings.source,
                    readable(info.why.as_bytes())
                ),
                alarm: info.state.name() != "running" || info.dead_letters > 0,
            }
        };
        now.groups.iter().map(row).collect()
    }

    /// How often a second something happened since the sample before. A number that went down is
    /// of a server that was started again.
    fn rate(&self, now: &Sample, before: Option<u64>, value: u64) -> Option<f64> {
        let seconds = (now.at.checked_sub(self.before.as_ref()?.at)?).as_secs_f64();
        let more = value.checked_sub(before?)?;
        (seconds > 0.0).then(|| more as f64 / seconds)
    }

    /// The numbers of the journal since the sample before: messages a second, bytes a second,
    /// flushes a second, and how long one took.
    pub(super) fn totals(&self) -> Totals {
        let Some(now) = &self.now else { return Totals::default() };
        let number = |sample: &Sample, name: &str| sample.stats["journal"][name].as_u64();
        let delta = |name: &str| {
            let before = self.before.as_ref().and_then(|before| number(before, name));
            Some((before?, number(now, name)?))
        };
        let rate = |name: &str| delta(name).and_then(|(old, new)| self.rate(now, Some(old), new));
        let before = self.before.as_ref();
        let known: HashMap<u64, u64> = before
            .iter()
            .flat_map(|sample| &sample.topics)
            .map(|info| (info.id, info.next.0))
            .collect();
        let rates = now
            .topics
            .iter()
            .filter_map(|info| self.rate(now, known.get(&info.id).copied(), info.next.0));
        let flushes = delta("flushes").and_then(|(old, new)| new.checked_sub(old));
        let spent = delta("flush_us_total").and_then(|(old, new)| new.checked_sub(old));
        let flush_us = match (spent, flushes) {
            (Some(spent), Some(flushes)) => spent.checked_div(flushes),
            _ => None,
        };
        Totals {
            messages: before.map(|_| rates.sum()),
            bytes: rate("bytes"),
            flushes: rate("flushes"),
            flush_us,
            state: now.stats["state"].as_str().unwrap_or("?").to_owned(),
            connections: now.stats["connections"].as_u64().unwrap_or(0),
            full: now.stats["journal"]["full"] == Value::Bool(true),
        }
    }
}

/// What stands above the tables.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Totals {
    pub(super) messages: Option<f64>,
    pub(super) bytes: Option<f64>,
    pub(super) flushes: Option<f64>,
    pub(super) flush_us: Option<u64>,
    pub(super) state: String,
    pub(super) connections: u64,
    pub(super) full: bool,
}

fn client(info: &ClientInfo, now: &Sample) -> Row {
    let in_flight = info.memberships.iter().map(|each| each.in_flight).sum();
    let follows = info.follows.iter().map(|each| each.pattern.to_string());
    let groups = info.memberships.iter().map(|each| format!("group {}", each.group));
    let what: Vec<String> = follows.chain(groups).collect();
    let since = now.time.since(info.since);
    Row {
        cells: vec![
            Cell::text(readable(info.name.as_bytes())),
            Cell::text(readable(info.address.as_bytes())),
            Cell::count(what.len() as u64),
            Cell::count(in_flight),
            Cell::number(since.as_secs_f64(), human_span(since)),
            Cell::text(info.state.name()),
        ],
        detail: if what.is_empty() { "follows nothing".into() } else { what.join(", ") },
        alarm: false,
    }
}

/// A rate for people: small ones are not rounded to nothing.
pub(super) fn human_rate(rate: f64) -> String {
    if rate > 0.0 && rate < 10.0 { format!("{rate:.1}") } else { human_number(rate.round() as u64) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_core::{Seq, TopicName, TopicSettings};

    fn topic(id: u64, name: &str, next: u64) -> TopicInfo {
        TopicInfo {
            name: TopicName::parse(name).unwrap(),
            id,
            first: Seq(1),
            next: Seq(next),
            bytes: next * 10,
            settings: TopicSettings::default(),
        }
    }

    fn sample(at: u64, topics: Vec<TopicInfo>) -> Sample {
        Sample { at: Duration::from_secs(at), topics, ..Sample::default() }
    }

    fn press(view: &mut View, keys: &str) {
        for letter in keys.chars() {
            view.key(KeyEvent::from(KeyCode::Char(letter)));
        }
    }

    fn names(view: &mut View) -> Vec<String> {
        view.rows().into_iter().map(|row| row.cells[0].text.clone()).collect()
    }

    fn two_samples() -> View {
        let mut view = View::new("here", Duration::from_secs(1), false);
        view.sampled(sample(10, vec![topic(1, "a", 100), topic(2, "b", 5), topic(3, "c", 1)]));
        view.sampled(sample(12, vec![topic(1, "a", 102), topic(2, "b", 25), topic(3, "c", 1)]));
        view
    }

    #[test]
    fn the_busiest_topic_is_first_and_rates_are_of_the_time_between_samples() {
        let mut view = two_samples();
        let rows = view.rows();
        let shown: Vec<_> = rows
            .iter()
            .map(|row| (row.cells[0].text.as_str(), row.cells[1].text.as_str()))
            .collect();
        assert_eq!(shown, [("b", "10"), ("a", "1.0"), ("c", "0")]);
        assert_eq!(view.totals().messages, Some(11.0));
    }

    #[test]
    fn a_table_is_sorted_by_any_column_and_the_other_way_round() {
        let mut view = two_samples();
        press(&mut view, ">");
        assert_eq!(names(&mut view), ["a", "b", "c"]);
        press(&mut view, "r");
        assert_eq!(names(&mut view), ["c", "b", "a"]);
        press(&mut view, "<<");
        assert_eq!(names(&mut view), ["a", "b", "c"]);
    }

    #[test]
    fn letters_of_a_filter_are_not_commands_and_escape_removes_it() {
        let mut view = two_samples();
        press(&mut view, "/bq");
        assert_eq!(view.filter, "bq");
        view.key(KeyEvent::from(KeyCode::Backspace));
        view.key(KeyEvent::from(KeyCode::Enter));
        assert_eq!(names(&mut view), ["b"]);
        view.key(KeyEvent::from(KeyCode::Esc));
        assert_eq!(names(&mut view).len(), 3);
        assert_eq!(view.key(KeyEvent::from(KeyCode::Char('q'))), Step::Quit);
    }

    #[test]
    fn the_selection_stays_within_the_rows() {
        let mut view = two_samples();
        press(&mut view, "jjjjjj");
        view.rows();
        assert_eq!(view.place().selected, 2);
        press(&mut view, "k");
        view.rows();
        assert_eq!(view.place().selected, 1);
        view.sampled(sample(14, Vec::new()));
        view.rows();
        assert_eq!(view.place().selected, 0);
    }

    #[test]
    fn a_stopped_screen_keeps_its_sample() {
        let mut view = two_samples();
        press(&mut view, " ");
        view.sampled(sample(14, Vec::new()));
        assert_eq!(view.rows().len(), 3);
        press(&mut view, " ");
        view.sampled(sample(15, Vec::new()));
        assert_eq!(view.rows().len(), 0);
    }

    #[test]
    fn a_restarted_server_has_no_negative_rates() {
        let mut view = two_samples();
        view.sampled(sample(14, vec![topic(1, "a", 3)]));
        assert_eq!(view.rows()[0].cells[1].text, "-");
    }
}
