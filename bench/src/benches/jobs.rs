//! Jobs: what a job costs that does nothing, what one costs that is a program, how late a result
//! is, what waiting jobs take in memory, and how clients share the workers.
//!
//! Leader, worker and client talk over sockets of this machine; jobs and results are flushed to disk
//! before they are answered. Programs run below a worker in a process of its own, as users have it,
//! beside a loop that does nothing but make a folder, run the program with its output captured and
//! remove the folder, on as many threads as there are processors, and beside GNU parallel. Others
//! (beanstalkd, gearmand, GNU parallel) are measured where they are installed.

mod peers;

use std::collections::VecDeque;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use gapless_bench::process::{load_average, resident_bytes};
use gapless_bench::table::{Figure, Goal, Row, Table};
use gapless_broker::{Broker, Handed, Join};
use gapless_core::job::JobId;
use gapless_core::job::leader::Limits;
use gapless_core::job::multi::Policy;
use gapless_core::{Durability, GroupSettings, Pattern, PublishOptions, TopicName};
use gapless_jobs::guard::Open;
use gapless_jobs::leader::{Ask, Tell};
use gapless_jobs::wire::{JobRequest, Status};
use gapless_jobs::{Access, ClientOptions, JobClient, Leader, LeaderOptions, Worker, session};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::store::{Folder, Result, message, open, topic};
use super::window::Window;

/// Jobs of a client in flight at a time.
const IN_FLIGHT: usize = 512;
/// Jobs that a worker of functions runs at a time.
const PARALLEL: u32 = 512;
/// Bytes of a message through a group: about those of a job's request.
const MESSAGE_BYTES: usize = 100;
/// Clients that share the workers.
const CLIENTS: usize = 100;
/// Jobs whose time from submit to result is taken, one after the other.
const TIMED: u64 = 500;
/// Longest wait for a job.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// Jobs that do nothing.
    pub(crate) jobs: u64,
    /// Jobs that are programs.
    pub(crate) programs: u64,
    /// Jobs that wait, over all clients.
    pub(crate) waiting: u64,
}

/// Every case, as a table.
///
/// # Errors
/// When the disk, the broker or a job answers one.
pub(crate) fn run(dir: &Path, options: &Options) -> Result<Table> {
    let load = load_average()?;
    let title = format!("jobs, over sockets of this machine, results on disk; load {load:.1}");
    let mut table = Table::new(title);
    let per_second = gapless_server::runtime()?.block_on(no_ops(dir, options, &mut table))?;
    beside_others(dir, options.jobs, per_second, &mut table)?;
    gapless_server::runtime()?.block_on(async {
        programs(dir, options, &mut table).await?;
        waiting(dir, options, &mut table).await
    })?;
    Ok(table)
}

struct Led {
    leader: Leader,
    address: String,
    accepting: tokio::task::JoinHandle<()>,
    _broker: Broker,
    _folder: Folder,
}

async fn lead(dir: &Path, name: &str) -> Result<Led> {
    let folder = Folder::fresh(dir, name)?;
    let broker = open(folder.path())?;
    let leader = Leader::start(&broker, LeaderOptions { limits: Limits::default() }).await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?.to_string();
    let serving = leader.clone();
    let accepting = tokio::spawn(async move {
        let mut sessions = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            let _ = stream.set_nodelay(true);
            let rooms = [(), (), ()];
            sessions.spawn(session::serve(stream, BytesMut::new(), serving.clone(), Open, rooms));
        }
    });
    Ok(Led { leader, address, accepting, _broker: broker, _folder: folder })
}

impl Drop for Led {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

fn client(address: &str) -> Arc<JobClient> {
    Arc::new(JobClient::connect(ClientOptions {
        leaders: vec![address.to_owned()],
        client_id: "bench".to_owned(),
        access: Access::default(),
        cap: PARALLEL,
        policy: Policy::Home,
        grace: Duration::from_secs(10),
    }))
}

/// A worker in this process that does nothing with its jobs.
fn worker(address: &str) -> Result<tokio::task::JoinHandle<()>> {
    let worker = Worker::connect(address, "bench")?
        .parallel(PARALLEL)
        .handle("nothing", |_| async { Ok(String::new()) })?;
    Ok(tokio::spawn(worker.run(std::future::pending())))
}

fn request(number: u64, exec: &str, client: &str) -> JobRequest {
    JobRequest {
        job_id: JobId(u128::from(number) + 1).to_string(),
        client_id: client.to_owned(),
        exec_name: exec.to_owned(),
        ..JobRequest::default()
    }
}

/// Runs jobs, so many at a time, and says how many a second.
async fn rate(client: &Arc<JobClient>, exec: &str, from: u64, count: u64) -> Result<f64> {
    let began = Instant::now();
    let mut running = JoinSet::new();
    for number in from..from + count {
        if running.len() >= IN_FLIGHT {
            running.join_next().await.ok_or("jobs are running")???;
        }
        let (client, request) = (Arc::clone(client), request(number, exec, "bench"));
        running.spawn(async move { one(&client, &request).await });
    }
    while let Some(done) = running.join_next().await {
        done??;
    }
    Ok(count as f64 / began.elapsed().as_secs_f64())
}

async fn one(client: &JobClient, request: &JobRequest) -> Result<()> {
    let result = tokio::time::timeout(WAIT_MAX, client.run(request)).await??;
    match result.status {
        Status::Ok => Ok(()),
        status => Err(format!("a job ended {status:?}: {:?}", result.reason).into()),
    }
}

async fn no_ops(dir: &Path, options: &Options, table: &mut Table) -> Result<f64> {
    let led = lead(dir, "no-ops").await?;
    let (worker, client) = (worker(&led.address)?, client(&led.address));
    // The first ones connect, create topics and warm up.
    rate(&client, "nothing", 0, 100).await?;
    let per_second = rate(&client, "nothing", 100, options.jobs).await?;
    let what = format!("no-op jobs, a function, {IN_FLIGHT} in flight, flushed");
    table.push(Row::new(what, Figure::per_second(per_second)));
    let mut times = Vec::new();
    for number in 0..TIMED {
        let began = Instant::now();
        one(&client, &request(100 + options.jobs + number, "nothing", "bench")).await?;
        times.push(began.elapsed());
    }
    times.sort_unstable();
    let micros =
        |at: usize| Figure::micros(times[at * (times.len() - 1) / 100].as_secs_f64() * 1e6);
    let row = Row::new("submit to result, one at a time, p50", micros(50));
    table.push(row.beside("p99", micros(99)));
    worker.abort();
    Ok(per_second)
}

/// The same rate beside a group of our own and beside other servers.
fn beside_others(dir: &Path, jobs: u64, per_second: f64, table: &mut Table) -> Result<()> {
    let mut push = |other: &str, rate: Option<f64>| {
        let row = Row::new(format!("no-op jobs beside {other}"), Figure::per_second(per_second));
        table.push(match rate {
            Some(rate) => row.against(Figure::per_second(rate)),
            None => row.notes("it is not installed"),
        });
    };
    push("a group alone: flushed, no results", Some(group_alone(dir, jobs)?));
    push("beanstalkd with a log, flushed", peers::beanstalkd(dir, jobs, true)?);
    push("beanstalkd in memory", peers::beanstalkd(dir, jobs, false)?);
    push("gearmand, in memory", peers::gearmand(jobs)?);
    Ok(())
}

/// Messages a second through a group: published, taken, acknowledged; both flushed.
fn group_alone(dir: &Path, count: u64) -> Result<f64> {
    let folder = Folder::fresh(dir, "group-alone")?;
    let broker = open(folder.path())?;
    let source = topic(&broker, Durability::Flushed)?;
    let group = TopicName::parse("bench-group")?;
    let settings = GroupSettings {
        durability: Durability::Flushed,
        ..GroupSettings::new(Pattern::literal(&source))
    };
    broker.create_group(&group, settings)?;
    let join = Join { name: "bench".to_owned(), window: PARALLEL };
    let mut member = broker.join_group(&group, &join)?;
    let began = Instant::now();
    std::thread::scope(|scope| {
        let (broker, source) = (&broker, &source);
        let publish = scope.spawn(move || -> Result<()> {
            let (body, options) = (message(MESSAGE_BYTES), PublishOptions::default());
            let mut window = Window::new(broker, IN_FLIGHT);
            for _ in 0..count {
                window.publish(|broker| broker.publish(source, &body, &options))?;
            }
            window.drain()
        });
        let acked: Result<()> = gapless_broker::block_on(async {
            let (mut taken, mut acking) = (0, VecDeque::new());
            while taken < count {
                let Handed::Messages(leased) = member.next().await? else { continue };
                for lease in leased.leases() {
                    // A lease is for a run of messages.
                    taken += lease.count();
                    acking.push_back(member.ack(std::slice::from_ref(lease)));
                    if acking.len() >= IN_FLIGHT
                        && let Some(oldest) = acking.pop_front()
                    {
                        oldest.await?;
                    }
                }
            }
            for each in acking {
                each.await?;
            }
            Ok(())
        });
        acked?;
        publish.join().map_err(|_| "the publisher panicked")?
    })?;
    let rate = count as f64 / began.elapsed().as_secs_f64();
    member.leave();
    broker.close()?;
    Ok(rate)
}

/// A process that is ended when this goes out of scope.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn programs(dir: &Path, options: &Options, table: &mut Table) -> Result<()> {
    let gapless = std::env::current_exe()?.with_file_name("gapless");
    if !gapless.exists() {
        return Err(format!("{} is missing: build it too", gapless.display()).into());
    }
    let led = lead(dir, "programs").await?;
    let execs = Folder::fresh(dir, "execs")?;
    let program = execs.path().join("program");
    std::fs::copy("/bin/true", &program)?;
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755))?;
    let count = options.programs;
    let processors = std::thread::available_parallelism()?.get();
    let mut command = Command::new(gapless);
    command.args(["worker", "--leader", &led.address, "--cpu-cap", "1", "--quiet"]);
    command.args(["--parallel", &(2 * processors).to_string(), "--exec-dir"]);
    command.arg(execs.path()).arg("--work-dir").arg(execs.path().join("work"));
    let worker = Running(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?);
    let client = client(&led.address);
    rate(&client, "program", 0, 20).await?;
    // In turn, so that all see the same weather.
    let own = bare_loop(dir, &program, count, processors)?;
    let per_second = rate(&client, "program", 20, count).await?;
    let parallel = gnu_parallel(&program, count);
    let row = Row::new("programs, isolated, beside a bare loop", Figure::per_second(per_second));
    let notes = format!("the loop on {processors} threads");
    table.push(row.against(Figure::per_second(own)).goal(Goal::AtLeast(0.6)).notes(notes));
    let row = Row::new("programs, isolated, beside GNU parallel", Figure::per_second(per_second));
    table.push(match parallel {
        Some(parallel) => row.against(Figure::per_second(parallel)).goal(Goal::AtLeast(3.0)),
        None => row.notes("it is not installed"),
    });
    drop(worker);
    Ok(())
}

/// Makes a folder, runs the program in it with its output captured, removes the folder.
fn bare_loop(dir: &Path, program: &Path, count: u64, threads: usize) -> Result<f64> {
    let each = count / threads as u64;
    let began = Instant::now();
    std::thread::scope(|scope| {
        let run = |thread: usize| {
            for number in 0..each {
                let folder: PathBuf = dir.join(format!("bare-{thread}-{number}"));
                std::fs::create_dir(&folder)?;
                let done = Command::new(program).current_dir(&folder).stdin(Stdio::null()).output();
                std::fs::remove_dir_all(&folder)?;
                done?;
            }
            Ok::<(), std::io::Error>(())
        };
        let threads: Vec<_> = (0..threads).map(|no| scope.spawn(move || run(no))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("it does not panic"))
    })?;
    Ok((each * threads as u64) as f64 / began.elapsed().as_secs_f64())
}

/// The same by GNU parallel; `None` where it is not installed.
fn gnu_parallel(program: &Path, count: u64) -> Option<f64> {
    let version = Command::new("parallel").arg("--version").output().ok()?;
    if !version.stdout.starts_with(b"GNU parallel") {
        return None;
    }
    let began = Instant::now();
    let script = format!("seq {count} | parallel -n1 {} {{}}", program.display());
    let done = Command::new("sh").args(["-c", &script]).output().ok()?;
    done.status.success().then(|| count as f64 / began.elapsed().as_secs_f64())
}

/// Jobs of many clients wait, then a worker comes: what they take, and who is served.
async fn waiting(dir: &Path, options: &Options, table: &mut Table) -> Result<()> {
    let led = lead(dir, "waiting").await?;
    led.leader.prepare().await?;
    let each = options.waiting / CLIENTS as u64;
    let before = resident_bytes()?;
    let began = Instant::now();
    let mut clients = Vec::new();
    // One client has all its jobs waiting before the next begins: the worst order.
    for at in 0..CLIENTS {
        let (out, mut tells) = Leader::channel();
        let (session, name) = (led.leader.new_session(), format!("client-{at:03}"));
        let hello = Ask::Client { name: name.clone().into(), cap: 4, weight: 1, out };
        led.leader.ask(session, hello).await?;
        for number in 0..each {
            let request = request(at as u64 * each + number, "nothing", &name);
            let bytes = Bytes::from(serde_json::to_vec(&request)?);
            let (_, spec) = JobRequest::parse(&bytes)?;
            led.leader.ask(session, Ask::Submit(Box::new(spec), bytes)).await?;
        }
        for _ in 0..each {
            let told = tokio::time::timeout(WAIT_MAX, tells.recv()).await?;
            let Some(Tell::Submitted { .. }) = told else { return Err("a refusal".into()) };
        }
        clients.push(tells);
    }
    let submitted = options.waiting as f64 / began.elapsed().as_secs_f64();
    let bytes = resident_bytes()?.saturating_sub(before) as f64 / options.waiting as f64;
    let what = format!("{} jobs of {CLIENTS} clients, submitted", options.waiting);
    table.push(Row::new(what, Figure::per_second(submitted)));
    table.push(Row::new("memory of a waiting job, with all the process has", Figure::bytes(bytes)));
    let worker = worker(&led.address)?;
    let (done, mut served) = mpsc::channel(1024);
    let mut readers = JoinSet::new();
    for (at, mut tells) in clients.into_iter().enumerate() {
        let done = done.clone();
        readers.spawn(async move {
            while let Some(tell) = tells.recv().await {
                if matches!(tell, Tell::Result(..)) && done.send(at).await.is_err() {
                    return;
                }
            }
        });
    }
    let mut counts = vec![0_u64; CLIENTS];
    let began = Instant::now();
    let mut done = 0;
    for tenth in [1, 5, 10] {
        while done < options.waiting * tenth / 10 {
            let at = tokio::time::timeout(WAIT_MAX, served.recv()).await?.ok_or("it serves")?;
            counts[at] += 1;
            done += 1;
        }
        let mut sorted = counts.clone();
        sorted.sort_unstable();
        let share = |at: usize| Figure::count(sorted[at] as f64);
        let what = format!("done for each client after {tenth} of 10 parts: fewest");
        let row = Row::new(what, share(0)).goal(Goal::AtLeast(0.8));
        let row = row.against(Figure::count((done / CLIENTS as u64) as f64));
        table.push(row.beside("median", share(CLIENTS / 2)).beside("most", share(CLIENTS - 1)));
    }
    let per_second = done as f64 / began.elapsed().as_secs_f64();
    table.push(Row::new("all of them worked off", Figure::per_second(per_second)));
    worker.abort();
    Ok(())
}
