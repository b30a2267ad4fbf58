//! `gapless sub --group`: a member of a group that prints messages and acks them.
//!
//! A message is acked when it was printed and stdout took it: a process that is killed in between
//! sees it again, and loses none.

use std::time::Duration;

use gapless_client::{
    AskError, Client, ErrorCode, GroupEvent, Leased, Leases, Member, MemberError, MemberOptions,
};
use gapless_core::{GroupSettings, GroupStart, Mode, Pattern, TopicName};
use serde_json::json;
use tokio::time::interval;

use super::group::{new_settings, no_group, or_failure};
use super::subscribe::{Show, show_one};
use crate::exit::{Done, Exit, Failure};
use crate::output::Output;
use crate::remote::{Interrupt, asked};
use crate::show::Shown;

/// Messages that are with the command at once.
const WINDOW: u32 = 1_000;
/// How often it is asked whether everything is done, if the command shall end then.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// What to take, and until when.
pub(crate) struct GroupPlan {
    pub(crate) group: TopicName,
    /// What it reads; with this it is created if it is not there.
    pub(crate) source: Option<Pattern>,
    /// The mode that was asked for.
    pub(crate) mode: Option<Mode>,
    /// Where a new one begins, if that was said.
    pub(crate) start: Option<GroupStart>,
    pub(crate) count: Option<u64>,
    pub(crate) follow: bool,
    pub(crate) show: Show,
}

pub(crate) async fn consume(client: &Client, plan: &GroupPlan, out: &mut Output) -> Done {
    let mut interrupt = Interrupt::listen()?;
    let mut left = plan.count.unwrap_or(u64::MAX);
    let mut member = join(client, plan, left, out).await?;
    let mut look = interval(LOOK_EVERY);
    let mut taken = 0;
    let done = loop {
        if left == 0 {
            break Ok(Exit::Ok);
        }
        tokio::select! {
            biased;
            () = interrupt.came() => break Ok(Exit::Ok),
            event = member.next() => match event {
                Some(Ok(GroupEvent::Messages(leased))) => {
                    let shown = show(&leased, left, plan, out)?;
                    out.flush()?;
                    left -= shown.count();
                    taken += acked(&member, &shown).await?;
                }
                Some(Ok(event)) => tell(&event, plan, out)?,
                Some(Err(error)) => break Err(failure(client, error, &plan.group).await),
                None => break Err(Failure::new(Exit::NoConnection, "the client has ended")),
            },
            _ = look.tick(), if !plan.follow => {
                let info = client.describe_group(&plan.group).await;
                if or_failure(client, &plan.group, info).await?.lag == 0 {
                    break Ok(Exit::Ok);
                }
            }
        }
    };
    member.leave().await;
    if out.json {
        out.json_line(&json!({ "event": "end", "group": plan.group.as_str(), "acked": taken }))?;
    } else {
        out.note(format_args!("{taken} acked"));
    }
    done
}

async fn join(
    client: &Client,
    plan: &GroupPlan,
    left: u64,
    out: &mut Output,
) -> Result<Member, Failure> {
    let window = u32::try_from(left).unwrap_or(WINDOW).min(WINDOW);
    let name = format!("gapless sub {}", std::process::id());
    let options = MemberOptions { name, window };
    let known = client.describe_group(&plan.group).await;
    let unknown = |error: &AskError| {
        let code = ErrorCode::UnknownGroup.number();
        matches!(error, AskError::Server(trouble) if trouble.code == code)
    };
    match (known, &plan.source) {
        (Ok(info), _) => is_as_asked(&info.settings, plan, out)?,
        (Err(error), Some(source)) if unknown(&error) => {
            let (mode, start) = (plan.mode.unwrap_or(Mode::Shared), plan.start);
            let start = start.unwrap_or(GroupStart::Beginning);
            let settings = new_settings(source.clone(), mode, start);
            let made = client.create_group(&plan.group, settings).await;
            or_failure(client, &plan.group, made).await?;
        }
        // Joining says what is wrong.
        (Err(_), _) => {}
    }
    match client.join_group(&plan.group, options).await {
        Ok(member) => Ok(member),
        Err(error) => Err(failure(client, error, &plan.group).await),
    }
}

/// An existing group stays as it is: other settings are refused.
fn is_as_asked(there: &GroupSettings, plan: &GroupPlan, out: &mut Output) -> Result<(), Failure> {
    let group = &plan.group;
    let refused = |what: String| {
        Failure::new(Exit::Rejected, format!("group {group} is there already and {what}")).hint(
            format!("leave that out, or choose another name; see: gapless group show {group}"),
        )
    };
    if plan.source.as_ref().is_some_and(|source| *source != there.source) {
        return Err(refused(format!("reads {}", there.source)));
    }
    if plan.mode.is_some_and(|mode| mode != there.mode) {
        return Err(refused(format!("is {}", there.mode)));
    }
    if plan.start.is_some_and(|start| start != there.start) {
        out.note(format_args!(
            "group {group} is there already and goes on where it was; --from is for a new one"
        ));
    }
    Ok(())
}

/// Prints messages, at most `left`; gives what was printed.
fn show(leased: &Leased, left: u64, plan: &GroupPlan, out: &mut Output) -> std::io::Result<Leases> {
    let mut shown = Leases::new();
    for each in leased.iter().take(usize::try_from(left).unwrap_or(usize::MAX)) {
        let (seq, position, time) = (each.seq, each.position, each.time);
        let topic = each.topic.as_str();
        let line = Shown { topic, seq, position, time, message: &each.message, epoch: None };
        let before = [("event", "message".into()), ("attempt", each.attempt.into())];
        show_one(&line, &plan.show, &before, out)?;
        shown.add(&each.leases());
    }
    Ok(shown)
}

/// How many of them count. What was lost with a connection comes again.
async fn acked(member: &Member, shown: &Leases) -> Result<u64, Failure> {
    match member.ack(shown).await {
        Ok(outcome) => Ok(outcome.taken),
        Err(MemberError::Lost { .. }) => Ok(0),
        Err(error) => Err(Failure::failed(error)),
    }
}

fn tell(event: &GroupEvent, plan: &GroupPlan, out: &mut Output) -> std::io::Result<()> {
    let group = plan.group.as_str();
    let (word, text) = match event {
        GroupEvent::Active => ("active", format!("{group}: this member gets the messages now")),
        GroupEvent::Standby => {
            ("standby", format!("{group}: another member gets the messages; standing by"))
        }
        GroupEvent::Rejoined => {
            ("rejoined", format!("{group}: connected again; what was not acked may come again"))
        }
        GroupEvent::Gap(gap) => {
            let topic = gap.topic.as_ref().map_or("its source", |topic| topic.as_str());
            let reason = gap.reason;
            ("gap", format!("gap: messages of {topic} are gone that were not done ({reason})"))
        }
        _ => return Ok(()),
    };
    if out.json {
        return out.json_line(&json!({ "event": word, "group": group }));
    }
    out.note(text);
    Ok(())
}

async fn failure(client: &Client, error: MemberError, group: &TopicName) -> Failure {
    match error {
        MemberError::Refused(trouble) | MemberError::Ended(trouble) => match trouble.known() {
            Some(ErrorCode::UnknownGroup) => no_group(group)
                .hint(format!("make it: gapless sub SOURCE --group {group}"))
                .code(trouble.code),
            _ => asked(client, AskError::Server(trouble), None).await,
        },
        MemberError::TimedOut | MemberError::GaveUp(_) | MemberError::Closed => {
            Failure::new(Exit::NoConnection, error)
        }
        other => Failure::failed(other),
    }
}
