//! `gapless top`: the server live, full screen.
//!
//! Here are the terminal and the loop. What is asked is in `sample.rs`, what keys do in `view.rs`,
//! what is drawn in `draw.rs`. The screen goes on showing the last sample, and its age, while the
//! server does not answer.

mod draw;
mod sample;
mod view;

use std::io::{self, IsTerminal};
use std::time::Duration;

use clap::Args;
use gapless_broker::{Clock, SystemClock};
use gapless_client::{Client, State};
use gapless_core::Pattern;
use ratatui::crossterm::event::{self, Event};
use tokio::sync::mpsc;
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::Global;
use crate::exit::{Done, Exit, Failure};
use crate::output::Output;
use crate::remote::{Interrupt, with_client};
use crate::values;
use sample::Sample;
use view::{Step, View};

const EXAMPLES: &str = "\
Examples:
  gapless top
  gapless top --every 5s                        ask less often
  gapless top --pattern 'orders.>'              only these topics, and groups that read from them
  gapless top --server unix:/srv/gapless/gapless.sock

Keys: Tab or 1 2 3 topics, groups, clients; up and down select; < and > sort by another column,
r the other way round; / filters by text, Esc removes the filter; space stops and goes on; ? shows
the keys; q quits. Rates are of the time since the sample before. It needs a terminal; for
programs there is: gapless stats --watch 1s --json";

/// Keys that were typed and not handled yet.
const KEYS_AHEAD: usize = 64;
/// How often the screen is drawn while nothing happens: the age of a sample is on it.
const DRAW_EVERY: Duration = Duration::from_secs(1);
/// More often the server would be busy with answering.
const EVERY_MIN: Duration = Duration::from_millis(100);

/// Show topics, groups, clients and rates live, full screen
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TopOptions {
    /// How often the server is asked
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = values::duration)]
    every: Duration,
    /// Only topics that match this pattern
    #[arg(long, default_value = ">", value_parser = values::pattern)]
    pattern: Pattern,
}

pub(crate) fn run(options: &TopOptions, global: &Global, out: &mut Output) -> Done {
    if out.json || !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return Err(Failure::words("top needs a terminal")
            .hint("for programs: gapless stats --watch 1s --json, or the metrics over HTTP"));
    }
    if options.every < EVERY_MIN {
        return Err(Failure::words("--every is 100ms at least"));
    }
    // Notes about the connection are on the screen, not between its lines.
    out.quiet = true;
    let colours = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    with_client(global, out, async |client, _| {
        let mut terminal = ratatui::try_init()?;
        let view = View::new(global.server(), options.every, colours);
        let done = show(client, options, view, &mut terminal).await;
        ratatui::try_restore()?;
        done
    })
}

async fn show(
    client: &Client,
    options: &TopOptions,
    mut view: View,
    terminal: &mut ratatui::DefaultTerminal,
) -> Done {
    let mut interrupt = Interrupt::listen()?;
    let mut keys = keys()?;
    let mut state = client.state();
    let mut draw = interval(DRAW_EVERY);
    let mut every = interval(options.every);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let clock = SystemClock::default();
    let mut next = Box::pin(sampled(&mut every, client, &options.pattern, &clock));
    loop {
        view.online(*state.borrow_and_update() == State::Online, client.last_trouble());
        terminal.draw(|frame| draw::draw(frame, &mut view, clock.monotonic()))?;
        tokio::select! {
            biased;
            () = interrupt.came() => return Ok(Exit::Ok),
            event = keys.recv() => match event {
                Some(Event::Key(key)) => {
                    if view.key(key) == Step::Quit {
                        return Ok(Exit::Ok);
                    }
                }
                Some(_) => {}
                // The terminal is gone.
                None => return Ok(Exit::Ok),
            },
            sample = &mut next => {
                match sample {
                    Ok(sample) => view.sampled(sample),
                    Err(error) => view.failed(&error),
                }
                drop(next);
                next = Box::pin(sampled(&mut every, client, &options.pattern, &clock));
            }
            changed = state.changed() => {
                if changed.is_err() {
                    return Err(Failure::new(Exit::NoConnection, "the client has ended"));
                }
            }
            _ = draw.tick() => {}
        }
    }
}

/// The next sample, when it is time for it.
async fn sampled(
    every: &mut Interval,
    client: &Client,
    pattern: &Pattern,
    clock: &SystemClock,
) -> Result<Sample, String> {
    every.tick().await;
    Sample::take(client, pattern, clock).await
}

/// What is typed, read by a thread: reading a terminal cannot be cancelled, so it is not joined.
fn keys() -> io::Result<mpsc::Receiver<Event>> {
    let (send, keys) = mpsc::channel(KEYS_AHEAD);
    std::thread::Builder::new().name("keys".into()).spawn(move || {
        while let Ok(event) = event::read() {
            if send.blocking_send(event).is_err() {
                return;
            }
        }
    })?;
    Ok(keys)
}
