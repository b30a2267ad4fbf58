//! What a viewer asks for: which parts of the state, and which lines of the lists.

use gapless_broker::SubscriberState;
use gapless_core::{Pattern, TopicName};
use gapless_protocol::ErrorCode;
use serde::Deserialize;

use crate::http::values::problem::Problem;

/// Lines of a list unless the request says how many.
const ROWS: usize = 50;
/// Most lines of a list.
const ROWS_MAX: usize = 200;
/// Most bytes of a filter.
const FILTER_BYTES_MAX: usize = 255;

/// The query of a request.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ViewQuery {
    show: Option<String>,
    topic: Option<String>,
    group: Option<String>,
    filter: Option<String>,
    sort: Option<String>,
    state: Option<String>,
    page: Option<String>,
    rows: Option<String>,
}

/// The order of topics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Sort {
    /// By name.
    #[default]
    Name,
    /// Most messages per second first.
    Rate,
    /// Most bytes per second first.
    Throughput,
    /// Most messages handed out per second first.
    Out,
    /// Largest first.
    Size,
    /// Most messages ever first.
    Messages,
}

/// What is looked for in names.
#[derive(Clone, Debug)]
pub(crate) enum Filter {
    /// Everything but the broker's own.
    All,
    /// Names that contain this text, ignoring case.
    Text(String),
    /// Names that match.
    Pattern(Pattern),
}

/// What a viewer asks for.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub(crate) overview: bool,
    pub(crate) topics: bool,
    pub(crate) clients: bool,
    pub(crate) events: bool,
    pub(crate) groups: bool,
    pub(crate) outbox: bool,
    pub(crate) cluster: bool,
    pub(crate) jobs: bool,
    pub(crate) topic: Option<String>,
    pub(crate) group: Option<TopicName>,
    pub(crate) filter: Filter,
    pub(crate) sort: Sort,
    pub(crate) state: Option<SubscriberState>,
    /// From 1 on.
    pub(crate) page: usize,
    pub(crate) rows: usize,
}

impl ViewQuery {
    /// # Errors
    /// Says which part is wrong, and what could be there.
    pub(crate) fn parse(self) -> Result<View, Problem> {
        let mut view = View {
            overview: self.show.is_none(),
            topics: self.show.is_none(),
            clients: self.show.is_none(),
            events: self.show.is_none(),
            groups: self.show.is_none(),
            outbox: self.show.is_none(),
            cluster: self.show.is_none(),
            jobs: self.show.is_none(),
            topic: self.topic,
            group: self.group.as_deref().map(group).transpose()?,
            filter: filter(self.filter.as_deref().unwrap_or_default())?,
            sort: sort(self.sort.as_deref())?,
            state: self.state.as_deref().filter(|text| !text.is_empty()).map(state).transpose()?,
            page: number("page", self.page.as_deref(), 1, usize::MAX)?,
            rows: number("rows", self.rows.as_deref(), ROWS, ROWS_MAX)?,
        };
        for part in self.show.iter().flat_map(|show| show.split(',')) {
            match part {
                "overview" => view.overview = true,
                "topics" => view.topics = true,
                "subscribers" => view.clients = true,
                "events" => view.events = true,
                "groups" => view.groups = true,
                "outbox" => view.outbox = true,
                "cluster" => view.cluster = true,
                "jobs" => view.jobs = true,
                "" => {}
                _ => {
                    let wanted =
                        "overview, topics, subscribers, groups, jobs, outbox, cluster, events";
                    return Err(bad("show", part, wanted));
                }
            }
        }
        Ok(view)
    }
}

impl Filter {
    pub(crate) fn matches(&self, name: &TopicName) -> bool {
        match self {
            Self::All => !name.is_system(),
            Self::Text(text) => contains(name.as_str(), text),
            Self::Pattern(pattern) => pattern.matches(name),
        }
    }

    /// As for names, for any text.
    pub(crate) fn finds(&self, text: &str) -> bool {
        match self {
            Self::All => true,
            Self::Text(wanted) => contains(text, wanted),
            Self::Pattern(pattern) => contains(text, pattern.as_str()),
        }
    }
}

/// Whether a text contains another that is in lower case.
fn contains(text: &str, lower: &str) -> bool {
    if text.is_ascii() {
        let bytes = lower.as_bytes();
        return text.as_bytes().windows(bytes.len()).any(|part| part.eq_ignore_ascii_case(bytes));
    }
    text.to_lowercase().contains(lower)
}

fn bad(name: &str, value: &str, wanted: &str) -> Problem {
    let detail = format!("{name} cannot be {value:?}: use {wanted}");
    Problem::new(ErrorCode::BadPayload, detail)
}

fn group(text: &str) -> Result<TopicName, Problem> {
    TopicName::parse(text).map_err(|_| bad("group", text, "the name of a group"))
}

fn filter(text: &str) -> Result<Filter, Problem> {
    let text = text.trim();
    if text.len() > FILTER_BYTES_MAX {
        return Err(bad("filter", "so long", "at most 255 bytes"));
    }
    if text.is_empty() {
        return Ok(Filter::All);
    }
    if text.contains(['*', '>']) || text.starts_with('$') {
        // While the user still types it may not be a valid pattern yet; then it is a text.
        if let Ok(pattern) = Pattern::parse(text) {
            return Ok(Filter::Pattern(pattern));
        }
    }
    Ok(Filter::Text(text.to_lowercase()))
}

fn sort(text: Option<&str>) -> Result<Sort, Problem> {
    match text {
        None | Some("" | "name") => Ok(Sort::Name),
        Some("rate") => Ok(Sort::Rate),
        Some("throughput") => Ok(Sort::Throughput),
        Some("out") => Ok(Sort::Out),
        Some("size") => Ok(Sort::Size),
        Some("messages") => Ok(Sort::Messages),
        Some(other) => Err(bad("sort", other, "name, rate, throughput, out, size or messages")),
    }
}

fn state(text: &str) -> Result<SubscriberState, Problem> {
    match text {
        "connected" => Ok(SubscriberState::Connected),
        "online" => Ok(SubscriberState::Online),
        "recovering" => Ok(SubscriberState::Recovering),
        "offline" => Ok(SubscriberState::Offline),
        other => Err(bad("state", other, "connected, online, recovering or offline")),
    }
}

fn number(name: &str, text: Option<&str>, default: usize, max: usize) -> Result<usize, Problem> {
    match text {
        None | Some("") => Ok(default),
        Some(text) => match text.parse() {
            Ok(number) if (1..=max).contains(&number) => Ok(number),
            _ if max == usize::MAX => Err(bad(name, text, "a number from 1 on")),
            _ => Err(bad(name, text, &format!("a number from 1 to {max}"))),
        },
    }
}
