//! Draws a view: a head of two lines, the table, a line about what is selected, and the keys.

use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Clear, Paragraph, Row, Table, TableState};

use super::view::{Tab, View, human_rate};
use crate::output::{human_bytes, human_number, human_span};

/// A sample that is older than so many intervals is said to be old.
const OLD_INTERVALS: u32 = 3;

const KEYS: [&str; 8] = [
    "Tab 1 2 3    topics, groups, clients",
    "up down j k  select a row; the line below the table is about it",
    "< >          sort by another column",
    "r            the other way round",
    "/            filter by text; Enter keeps it, Esc removes it",
    "space        stop the screen, and go on",
    "? h          these keys; any key closes them",
    "q Ctrl-C     quit",
];

pub(super) fn draw(frame: &mut Frame<'_>, view: &mut View, now: Duration) {
    let [head, tabs, table, detail, keys] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(1),
        Constraint::Min(1),
        Constraint::Length(1),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    let rows = view.rows();
    let about = rows.get(view.place().selected).map(|row| row.detail.clone());
    frame.render_widget(Paragraph::new(head_lines(view, now)), head);
    frame.render_widget(Paragraph::new(tab_line(view, rows.len())), tabs);
    draw_table(frame, view, rows, table);
    frame.render_widget(Paragraph::new(about.unwrap_or_default()), detail);
    let keys_line = if view.typing {
        Line::from(format!("filter: {}_", view.filter))
    } else {
        Line::from("q quit  Tab next  < > sort  r reverse  / filter  space stop  ? help").dim()
    };
    frame.render_widget(Paragraph::new(keys_line), keys);
    if view.help {
        draw_help(frame);
    }
}

fn head_lines(view: &View, now: Duration) -> Vec<Line<'static>> {
    let totals = view.totals();
    let mut first = vec![Span::from("gapless top ").bold(), Span::from(view.server.clone())];
    let age = view.now.as_ref().map(|sample| now.saturating_sub(sample.at));
    let old = age.is_some_and(|age| age > view.every * OLD_INTERVALS);
    let state = match (&view.trouble, &view.now) {
        (Some(why), _) => {
            // The age first: a long reason may be cut off.
            let age = age.map(|age| format!("no answer for {}: ", human_span(age)));
            coloured(view, Color::Red, format!("  {}{why}", age.unwrap_or_default()))
        }
        (None, None) => Span::from("  asking"),
        (None, Some(_)) if view.stopped => coloured(view, Color::Yellow, "  stopped".into()),
        (None, Some(_)) if old => {
            let age = human_span(age.unwrap_or_default());
            coloured(view, Color::Red, format!("  no answer for {age}"))
        }
        (None, Some(_)) if totals.full => coloured(view, Color::Red, "  the disk is full".into()),
        (None, Some(sample)) => match sample.notes.first() {
            Some(note) => coloured(view, Color::Yellow, format!("  {note}")),
            None => coloured(view, Color::Green, format!("  {}", totals.state)),
        },
    };
    first.push(state);
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let second = format!(
        "in {} msg/s, {}/s   flush {}, {}/s   {} connections",
        or_dash(totals.messages.map(human_rate)),
        or_dash(totals.bytes.map(|rate| human_bytes(rate as u64))),
        or_dash(totals.flush_us.map(human_us)),
        or_dash(totals.flushes.map(human_rate)),
        human_number(totals.connections),
    );
    vec![Line::from(first), Line::from(second)]
}

fn tab_line(view: &View, shown: usize) -> Line<'static> {
    let mut spans = Vec::new();
    for tab in Tab::ALL {
        let count = view.now.as_ref().map_or(0, |sample| match tab {
            Tab::Topics => sample.topics.len(),
            Tab::Groups => sample.groups.len(),
            Tab::Clients => sample.clients.len(),
        });
        let text = format!(" {} {} {} ", tab as usize + 1, tab.name(), human_number(count as u64));
        let span = Span::from(text);
        spans.push(if tab == view.tab { span.reversed() } else { span.dim() });
    }
    if !view.filter.is_empty() && !view.typing {
        spans.push(Span::from(format!("  filter \"{}\": {shown} rows", view.filter)));
    }
    Line::from(spans)
}

fn draw_table(frame: &mut Frame<'_>, view: &View, rows: Vec<super::view::Row>, area: Rect) {
    let (tab, place) = (view.tab, view.place());
    let columns = tab.columns();
    let widths = columns.iter().map(|(_, width)| match width {
        0 => Constraint::Min(12),
        width => Constraint::Length(*width),
    });
    let align = |column: usize, text: String| {
        let line = Line::from(text);
        Cell::from(if tab.is_number(column) { line.right_aligned() } else { line })
    };
    let heading = columns.iter().enumerate().map(|(at, (name, _))| {
        let arrow = match (at == place.column, place.descending) {
            (false, _) => "",
            (true, true) => "v",
            (true, false) => "^",
        };
        align(at, format!("{name}{arrow}"))
    });
    let heading = Row::new(heading).style(Style::new().bold());
    let alarm = if view.colours { Style::new().fg(Color::Yellow) } else { Style::new() };
    let rows = rows.into_iter().map(|row| {
        let cells = row.cells.into_iter().enumerate().map(|(at, cell)| align(at, cell.text));
        Row::new(cells).style(if row.alarm { alarm } else { Style::new() })
    });
    let table = Table::new(rows, widths)
        .header(heading)
        .column_spacing(1)
        .row_highlight_style(Style::new().reversed());
    let mut state = TableState::default().with_selected(Some(place.selected));
    frame.render_stateful_widget(table, area, &mut state);
}

fn draw_help(frame: &mut Frame<'_>) {
    let area = frame.area();
    let height = (KEYS.len() as u16).min(area.height);
    let top = (area.height - height) / 2;
    let area = Rect { y: area.y + top, height, ..area };
    frame.render_widget(Clear, area);
    let lines: Vec<Line<'_>> = KEYS.iter().map(|key| Line::from(format!("  {key}"))).collect();
    frame.render_widget(Paragraph::new(lines).bold(), area);
}

fn coloured(view: &View, colour: Color, text: String) -> Span<'static> {
    let span = Span::from(text);
    if view.colours { span.fg(colour) } else { span }
}

/// A time of a flush for people.
fn human_us(us: u64) -> String {
    match us {
        0..1_000 => format!("{us} µs"),
        1_000..1_000_000 => format!("{:.1} ms", us as f64 / 1_000.0),
        _ => format!("{:.1} s", us as f64 / 1_000_000.0),
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample::Sample;
    use super::*;
    use gapless_core::shown::TopicInfo;
    use gapless_core::{Seq, TopicName, TopicSettings};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use serde_json::json;

    fn screen(view: &mut View, columns: u16, rows: u16, now: Duration) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
        terminal.draw(|frame| draw(frame, view, now)).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |y| (0..columns).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..rows).map(|y| line(y).trim_end().to_owned()).collect()
    }

    fn view() -> View {
        let mut view = View::new("127.0.0.1:4281", Duration::from_secs(1), false);
        for (at, next, flushes, spent) in [(1, 10, 5, 5_000), (2, 1_244, 7, 8_000)] {
            let topic = TopicInfo {
                name: TopicName::parse("orders.created").unwrap(),
                id: 1,
                first: Seq(1),
                next: Seq(next),
                bytes: 2_048,
                settings: TopicSettings::default(),
            };
            view.sampled(Sample {
                at: Duration::from_secs(at),
                topics: vec![topic],
                stats: json!({
                    "state": "running", "connections": 3,
                    "journal": { "bytes": at * 1_024, "flushes": flushes, "flush_us_total": spent },
                }),
                ..Sample::default()
            });
        }
        view
    }

    #[test]
    fn rates_flush_time_and_topics_fit_80_columns() {
        let lines = screen(&mut view(), 80, 24, Duration::from_secs(2));
        assert_eq!(lines[0], "gapless top 127.0.0.1:4281  running");
        assert_eq!(lines[1], "in 1 234 msg/s, 1.0 KiB/s   flush 1.5 ms, 2.0/s   3 connections");
        assert!(lines[2].contains("1 Topics 1") && lines[2].contains("3 Clients 0"), "{lines:#?}");
        assert!(lines[3].starts_with("TOPIC") && lines[3].ends_with("SIZE"), "{lines:#?}");
        assert!(lines[4].starts_with("orders.created"), "{lines:#?}");
        assert!(lines[4].contains("1 234") && lines[4].ends_with("2.0 KiB"), "{lines:#?}");
        assert!(lines[22].contains("durable") && lines[23].starts_with("q quit"), "{lines:#?}");
    }

    #[test]
    fn a_server_that_does_not_answer_is_seen() {
        let mut view = view();
        let lines = screen(&mut view, 80, 24, Duration::from_secs(9));
        assert!(lines[0].contains("no answer for 7.0s"), "{lines:#?}");
        view.failed("the connection is lost");
        let lines = screen(&mut view, 80, 24, Duration::from_secs(9));
        assert!(lines[0].contains("no answer for 7.0s: the connection is lost"), "{lines:#?}");
    }

    #[test]
    fn a_tiny_terminal_does_no_harm() {
        for (columns, rows) in [(1, 1), (20, 3), (5, 50), (300, 2)] {
            let mut view = view();
            view.help = true;
            screen(&mut view, columns, rows, Duration::from_secs(2));
        }
    }
}
