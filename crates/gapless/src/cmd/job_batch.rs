//! `gapless job submit --batch`: a job for each line, thousands at once.
//!
//! Lines are read as jobs can be sent: at most [`OPEN_MAX`] are unanswered at a time, so an endless
//! input takes little memory. Results are printed as they come. Progress is on the terminal.

use std::io::{self, BufRead, Read};
use std::sync::Arc;

use gapless_jobs::names;
use gapless_jobs::wire::{JobRequest, JobResult, Status};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::job_manage;
use super::job_submit::{Lines, SubmitOptions, request};
use crate::cmd::Global;
use crate::exit::{Done, Exit, Failure};
use crate::output::{Output, human_number};
use crate::progress::{Progress, count_bar};
use crate::{jobs, remote::Interrupt};

/// Most jobs that wait for their result at a time.
const OPEN_MAX: usize = 4096;
/// Most jobs that wait to be accepted at a time.
const UNANSWERED_MAX: u64 = 256;
/// Longest line, in bytes: a request is at most a frame.
const LINE_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// Most lines that are read ahead.
const LINES_MAX: usize = 64;

pub(super) fn run(options: &SubmitOptions, form: Lines, global: &Global, out: &mut Output) -> Done {
    let model = request(options)?;
    if form == Lines::Lines && model.exec_name.is_empty() {
        return Err(Failure::words("say what is to be run: gapless job submit EXEC --batch lines"));
    }
    gapless_server::runtime()?.block_on(async {
        let mut jobs = Requests { model, form, lines: lines_of_stdin(), number: 0 };
        match options.detach {
            true => detached(&mut jobs, options, global, out).await,
            false => waited_for(&mut jobs, options, global, out).await,
        }
    })
}

/// The jobs of stdin.
struct Requests {
    model: JobRequest,
    form: Lines,
    lines: mpsc::Receiver<io::Result<Vec<u8>>>,
    number: u64,
}

/// The lines of stdin, read by a thread: reading blocks, and must not be given up halfway.
fn lines_of_stdin() -> mpsc::Receiver<io::Result<Vec<u8>>> {
    let (send, lines) = mpsc::channel(LINES_MAX);
    std::thread::spawn(move || {
        let mut stdin = io::stdin().lock();
        loop {
            let mut line = Vec::new();
            let read = (&mut stdin).take(LINE_BYTES_MAX + 1).read_until(b'\n', &mut line);
            let end = !matches!(read, Ok(bytes) if bytes > 0);
            let next = read.map(|_| line);
            // An empty line is none of the input's: it is the end.
            if matches!(&next, Ok(line) if line.is_empty())
                || send.blocking_send(next).is_err()
                || end
            {
                return;
            }
        }
    });
    lines
}

impl Requests {
    async fn next(&mut self) -> Result<Option<JobRequest>, Failure> {
        loop {
            let Some(line) = self.lines.recv().await.transpose()? else { return Ok(None) };
            self.number += 1;
            let wrong = |why: &dyn std::fmt::Display| {
                Failure::words(format!("line {}: {why}", self.number))
                    .hint("the lines before it were submitted, those behind it were not")
            };
            if line.len() as u64 > LINE_BYTES_MAX {
                return Err(wrong(&format_args!("it is longer than {LINE_BYTES_MAX} bytes")));
            }
            let line = String::from_utf8(line).map_err(|_| wrong(&"it is not UTF-8"))?;
            let line = line.trim_end_matches(['\n', '\r']);
            if line.is_empty() {
                continue;
            }
            return self.request(line).map(Some).map_err(|why| wrong(&why));
        }
    }

    fn request(&self, line: &str) -> Result<JobRequest, String> {
        if self.form == Lines::Lines {
            let mut request = self.model.clone();
            request.job_id = jobs::new_id().to_string();
            request.args.push(line.to_owned());
            return Ok(request);
        }
        let given =
            serde_json::from_str(line).map_err(|error| format!("not valid JSON: {error}"))?;
        // What a line does not say is as the words say.
        let model = serde_json::to_value(&self.model).map_err(|error| error.to_string())?;
        let mut whole = names::pascal(model);
        let given = names::request(with_exec(given, &self.model.exec_name))
            .map_err(|error| error.to_string())?;
        let given = serde_json::to_value(given).map_err(|error| error.to_string())?;
        let (Some(whole_fields), Some(fields)) = (whole.as_object_mut(), given.as_object()) else {
            return Err("it is not an object".to_owned());
        };
        for (name, value) in fields {
            let nothing = value.as_str() == Some("") || value.as_array().is_some_and(Vec::is_empty);
            if !nothing {
                whole_fields.insert(name.clone(), value.clone());
            }
        }
        let mut request = names::request(whole).map_err(|error| error.to_string())?;
        if fields.get("JobId").is_none_or(|id| id == "") {
            request.job_id = jobs::new_id().to_string();
        }
        Ok(request)
    }
}

/// A line that does not name an executable means that of the words.
fn with_exec(mut given: serde_json::Value, exec: &str) -> serde_json::Value {
    if let Some(fields) = given.as_object_mut()
        && !["exec", "exec_name", "Exec", "ExecName"].iter().any(|name| fields.contains_key(*name))
    {
        fields.insert("ExecName".to_owned(), exec.into());
    }
    given
}

/// Submits each and prints its id when it is accepted.
async fn detached(
    jobs: &mut Requests,
    options: &SubmitOptions,
    global: &Global,
    out: &mut Output,
) -> Done {
    let client = Some((&*options.client, options.cap));
    let mut leader = job_manage::connect_for(client, &options.leaders[0], global).await?;
    let mut progress = Progress::new(out.quiet);
    let (mut sent, mut submitted, mut more) = (0, 0, true);
    while more || submitted < sent {
        if more && sent - submitted < UNANSWERED_MAX {
            match jobs.next().await? {
                None => more = false,
                Some(request) => {
                    leader.begin_submit(&request).await.map_err(jobs::not_done)?;
                    sent += 1;
                }
            }
            continue;
        }
        let (job, known) = leader.submitted().await.map_err(jobs::not_done)?;
        let known = known.map_err(|error| {
            let failure = jobs::not_done(error);
            Failure { message: format!("job {job}: {}", failure.message), ..failure }
        })?;
        submitted += 1;
        out.result(&json!({ "JobId": job.to_string(), "Known": known }), job)?;
        progress.update(|_| count_bar("submitted", submitted, sent, 0));
    }
    progress.clear();
    out.note(format_args!("{} submitted", human_number(submitted)));
    Ok(Exit::Ok)
}

async fn waited_for(
    requests: &mut Requests,
    options: &SubmitOptions,
    global: &Global,
    out: &mut Output,
) -> Done {
    let mut interrupt = Interrupt::listen()?;
    let client = jobs::connect(global, &options.leaders, &options.client, options.cap).await?;
    let client = Arc::new(client);
    let mut progress = Progress::new(out.quiet);
    let mut open: JoinSet<Result<JobResult, Failure>> = JoinSet::new();
    let (mut submitted, mut done, mut failed) = (0, 0, 0);
    let mut more = true;
    while more || !open.is_empty() {
        tokio::select! {
            request = requests.next(), if more && open.len() < OPEN_MAX => match request? {
                None => more = false,
                Some(request) => {
                    submitted += 1;
                    let (client, timeout) = (Arc::clone(&client), global.timeout);
                    // What happens meanwhile is not observed.
                    let (events, _) = mpsc::channel(1);
                    open.spawn(async move {
                        jobs::result_of(&client, &request, events, timeout).await
                    });
                }
            },
            Some(result) = open.join_next() => {
                let result = result??;
                done += 1;
                failed += u64::from(result.status != Status::Ok);
                progress.clear();
                if out.json {
                    out.json_line(&serde_json::to_value(&result).map_err(Failure::failed)?)?;
                } else if result.status == Status::Ok {
                    out.bytes(result.stdout.as_bytes())?;
                } else {
                    out.note(jobs::ending(&result));
                }
            }
            () = interrupt.came() => {
                let left = open.len();
                return Err(Failure::failed(format!("stopped waiting for {left} results"))
                    .hint("the jobs go on: see gapless job ls"));
            }
        }
        progress.update(|_| count_bar("jobs", done, submitted, failed));
    }
    progress.clear();
    match failed {
        0 => Ok(Exit::Ok),
        failed => {
            let (failed, done) = (human_number(failed), human_number(done));
            Err(Failure::failed(format!("{failed} of {done} jobs did not succeed")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request_of(form: Lines, line: &str) -> Result<JobRequest, String> {
        let model = JobRequest {
            job_id: jobs::new_id().to_string(),
            client_id: "cli".to_owned(),
            exec_name: "calc".to_owned(),
            args: vec!["-n".to_owned()],
            priority: Some(7),
            ..JobRequest::default()
        };
        let (_, lines) = mpsc::channel(1);
        Requests { model, form, lines, number: 0 }.request(line)
    }

    #[test]
    fn a_line_is_the_last_argument_or_a_whole_request_over_what_the_words_say() {
        let plain = request_of(Lines::Lines, "two words").expect("fine");
        assert_eq!((plain.args.len(), plain.args[1].as_str()), (2, "two words"));
        let json = request_of(Lines::Json, r#"{"args": ["2"], "priority": 1}"#).expect("fine");
        assert_eq!(
            (&*json.exec_name, json.priority, json.args),
            ("calc", Some(1), vec!["2".into()])
        );
        let own = r#"{"exec": "other", "client": "me", "id": "0123456789abcdef0123456789abcdef"}"#;
        let own = request_of(Lines::Json, own).expect("fine");
        assert_eq!((&*own.exec_name, &*own.client_id, own.priority), ("other", "me", Some(7)));
        assert_eq!(own.job_id, "0123456789abcdef0123456789abcdef");
        for wrong in ["x", "[]", r#"{"priorty": 1}"#] {
            assert!(request_of(Lines::Json, wrong).is_err(), "{wrong}");
        }
    }
}
