//! A second group that comes and goes: it is deleted while its members hold messages, reset
//! under them, and made again under the same name. All that is known of it is whether it is
//! there; that every store opens again, and that the first group goes on, is what counts.

use std::task::{Context, Poll, Waker};

use gapless_broker::{GroupError, Handed, Join, LetterFilter};
use gapless_core::GroupStart;

use super::*;

/// Members of it at the same time, those of a deleted one included.
const SIDE_MEMBERS_MAX: usize = 4;
/// Steps of one look by such a member.
const STEPS_MAX: usize = 8;

/// What is known of the second group, and who holds its messages.
#[derive(Default)]
pub(super) struct Side {
    workers: Vec<(Member, Vec<Lease>)>,
    /// Whether it is there; unknown when the system was in trouble.
    there: Option<bool>,
    deleted_under_leases: u64,
}

impl Side {
    /// The run ended: it has no members any more.
    pub(super) fn clear(&mut self) {
        self.workers.clear();
    }

    /// How often it was deleted while a member held its messages.
    pub(super) fn deleted_under_leases(&self) -> u64 {
        self.deleted_under_leases
    }
}

impl World {
    /// Something happens to the second group.
    pub(super) fn act_aside(&mut self) -> Checked {
        if self.may_block() {
            return Ok(());
        }
        let broker = self.broker();
        let side = name("side");
        match self.random.weighted(&[10, 12, 6, 3, 12, 1, 1]) {
            0 => {
                let source = Pattern::parse("in").expect("it is a pattern");
                let settings = GroupSettings { attempts_max: 2, ..GroupSettings::new(source) };
                let made = broker.create_group(&side, settings).map(|_| ());
                self.changed_aside("create", made, Some(true))
            }
            1 => {
                let join = Join { name: "s".to_owned(), window: 4 };
                if self.side.workers.len() < SIDE_MEMBERS_MAX
                    && let Ok(member) = broker.join_group(&side, &join)
                {
                    self.side.workers.push((member, Vec::new()));
                }
                self.look_aside();
                Ok(())
            }
            2 => {
                self.look_aside();
                Ok(())
            }
            3 => {
                self.say_aside();
                Ok(())
            }
            4 => {
                let held = self.side.workers.iter().any(|(_, held)| !held.is_empty());
                let deleted = broker.delete_group(&side);
                self.side.deleted_under_leases += u64::from(held && deleted.is_ok());
                self.changed_aside("delete", deleted, Some(false))
            }
            5 => {
                let reset = broker.reset_group(&side, GroupStart::Beginning, true).map(|_| ());
                self.changed_aside("reset", reset, None)
            }
            _ => {
                let removed = broker.remove_dead_letters(&side, &LetterFilter::all()).map(|_| ());
                self.changed_aside("letters", removed, None)
            }
        }
    }

    /// Takes over what became of a change; `there` is what it makes of the group.
    fn changed_aside(
        &mut self,
        what: &str,
        done: Result<(), GroupError>,
        there: Option<bool>,
    ) -> Checked {
        self.note(format_args!("side {what}: {done:?}"));
        match done {
            Ok(()) => self.side.there = there.or(self.side.there),
            Err(GroupError::Unknown(_)) => {
                ensure(self.side.there != Some(true), || "the second group is gone".into())?;
            }
            Err(GroupError::Rejected(_)) => {}
            Err(error) => {
                let busy = matches!(error, GroupError::System(PubSubError::Unavailable));
                ensure(busy || self.in_trouble(), || format!("side {what}: {error}"))?;
                if there.is_some() {
                    self.side.there = None;
                }
            }
        }
        Ok(())
    }

    /// A member of it takes something.
    fn look_aside(&mut self) {
        if self.side.workers.is_empty() {
            return;
        }
        // The one that came last: those of a group that is gone get nothing.
        let at = self.side.workers.len() - 1;
        for _ in 0..STEPS_MAX {
            let (member, held) = &mut self.side.workers[at];
            match member.poll_next(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(Ok(Handed::Messages(leased))) => held.extend(leased.leases()),
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(_)) | Poll::Pending => return,
            }
        }
    }

    /// A member of it says something, or goes, whether or not the group is still there.
    fn say_aside(&mut self) {
        if self.side.workers.is_empty() {
            return;
        }
        let at = self.random.index(self.side.workers.len());
        let kind = self.random.below(8);
        if kind >= 3 {
            let (member, _) = self.side.workers.swap_remove(at);
            if kind == 3 {
                member.leave();
            }
            return;
        }
        let (member, held) = &mut self.side.workers[at];
        let leases = std::mem::take(held);
        let said = match kind {
            0 => member.ack(&leases),
            1 => member.nack(&leases, None, "no"),
            _ => member.terminate(&leases, "never"),
        };
        drop(said);
    }

    /// After an opening it is there or not, as far as that was told.
    pub(super) fn observe_aside(&mut self) -> Checked {
        let there = self.broker().describe_group(&name("side")).is_ok();
        let told = self.side.there.replace(there);
        ensure(told.is_none_or(|told| told == there), || {
            format!("the second group is there: {there}, told was {told:?}")
        })
    }
}
