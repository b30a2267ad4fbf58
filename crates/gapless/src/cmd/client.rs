//! `gapless client` and `gapless clientx`: sample jobs at one leader, or over several.

use std::sync::Arc;

use clap::Args;
use gapless_jobs::wire::{JobRequest, Status};
use tokio::task::JoinSet;

use crate::cmd::Global;
use crate::exit::{Done, Exit, Failure};
use crate::jobs;
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  gapless client 127.0.0.1 5000 clientA 8
  CLIENT_DESIRED_PAR=8 gapless client 127.0.0.1 5000 clientA

It submits calcA 1, calcA 2 and calcA 3, and prints each result: a first look at a leader with its
workers. Jobs of your own: gapless job submit";

const EXAMPLES_X: &str = "\
Examples:
  gapless clientx clientA 127.0.0.1:5000 127.0.0.1:5001 12
  CLIENT_DESIRED_PAR=12 gapless clientx clientA 127.0.0.1:5000 127.0.0.1:5001

Jobs are spread over the leaders by their ids. When a leader is away for 10 s, its jobs go to
another one under the same id; the first result counts.";

/// The executable of the samples.
const SAMPLE_EXEC: &str = "calcA";
/// Its argument is the number of the sample.
const SAMPLES: u32 = 3;

/// Submit three sample jobs to a leader
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ClientOptions {
    /// Host of the leader
    host: String,
    /// Port of the leader
    port: u16,
    /// Who the client is
    client: String,
    /// How many of its jobs may run at a time
    #[arg(env = "CLIENT_DESIRED_PAR", hide_env_values = true)]
    #[arg(default_value = "4", value_parser = jobs::cap)]
    cap: u32,
}

/// Submit three sample jobs over several leaders
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES_X)]
pub(crate) struct ClientxOptions {
    /// Who the client is
    client: String,
    /// The leaders as host:port, and last how many jobs may run at a time, over all of them
    #[arg(required = true, value_name = "LEADERS… [CAP]")]
    words: Vec<String>,
    /// How many jobs may run at a time, when the last word does not say
    #[arg(long, value_name = "N", env = "CLIENT_DESIRED_PAR", hide_env_values = true)]
    #[arg(default_value = "4", value_parser = jobs::cap)]
    cap: u32,
}

pub(crate) fn run(options: &ClientOptions, global: &Global, out: &mut Output) -> Done {
    let leaders = [format!("{}:{}", options.host, options.port)];
    samples(&options.client, &leaders, options.cap, global, out)
}

pub(crate) fn run_x(options: &ClientxOptions, global: &Global, out: &mut Output) -> Done {
    let (leaders, cap) = leaders_and_cap(&options.words, options.cap).map_err(Failure::words)?;
    samples(&options.client, &leaders, cap, global, out)
}

/// The last word is the cap, if it is not an address.
fn leaders_and_cap(words: &[String], usual: u32) -> Result<(Vec<String>, u32), String> {
    let (leaders, cap) = match words.split_last() {
        Some((last, leaders)) if !last.contains(':') => (leaders, jobs::cap(last)?),
        _ => (words, usual),
    };
    if leaders.is_empty() {
        return Err("name at least one leader as host:port".to_owned());
    }
    let leaders = leaders.iter().map(|each| {
        jobs::leader(each).map_err(|why| format!("{each:?} is not the address of a leader: {why}"))
    });
    Ok((leaders.collect::<Result<_, _>>()?, cap))
}

fn samples(
    client_id: &str,
    leaders: &[String],
    cap: u32,
    global: &Global,
    out: &mut Output,
) -> Done {
    gapless_server::runtime()?.block_on(async {
        let client = Arc::new(jobs::connect(global, leaders, client_id, cap).await?);
        let mut waiting = JoinSet::new();
        for number in 1..=SAMPLES {
            let request = JobRequest {
                job_id: jobs::new_id().to_string(),
                client_id: client_id.to_owned(),
                exec_name: SAMPLE_EXEC.to_owned(),
                args: vec![number.to_string()],
                ..JobRequest::default()
            };
            let (client, timeout) = (Arc::clone(&client), global.timeout);
            // Only the result is of interest: events are not taken.
            let (events, _) = tokio::sync::mpsc::channel(1);
            waiting.spawn(async move { jobs::result_of(&client, &request, events, timeout).await });
        }
        let mut succeeded = 0;
        while let Some(result) = waiting.join_next().await {
            let result = result??;
            succeeded += u32::from(result.status == Status::Ok);
            let text = format!("{}: {}", jobs::ending(&result), result.stdout.trim_end());
            out.result(&serde_json::to_value(&result).map_err(Failure::failed)?, text)?;
        }
        match SAMPLES - succeeded {
            0 => Ok(Exit::Ok),
            failed => Err(Failure::failed(format!("{failed} of {SAMPLES} jobs did not succeed"))),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e8_the_last_word_is_the_cap_if_it_is_no_address() {
        let split = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            leaders_and_cap(&words, 4)
        };
        let two = vec!["a:1".to_owned(), "b:2".to_owned()];
        assert_eq!(split(&["a:1", "b:2", "12"]), Ok((two.clone(), 12)));
        assert_eq!(split(&["a:1", "b:2"]), Ok((two, 4)));
        for wrong in [&["12"][..], &["a:1", "0"], &["a", "b:1"]] {
            assert!(split(wrong).is_err(), "{wrong:?}");
        }
    }
}
