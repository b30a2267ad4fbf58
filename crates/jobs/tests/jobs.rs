//! Leader, workers and clients through real sockets, with real processes (E1 to E10).

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use gapless_broker::{Broker, BrokerOptions};
use gapless_core::job::leader::{Counts, Limits};
use gapless_core::job::multi::Policy;
use gapless_jobs::guard::Open;
use gapless_jobs::wire::{JobRequest, JobResult, Status, decode};
use gapless_jobs::{
    Access, ClientOptions, Failure, JobClient, JobEvent, Leader, LeaderOptions, RunLimits,
    RunOptions, Sandbox, SubmitError, Worker, WorkerOptions, session,
};
use gapless_protocol::{Decoder, Frame, FrameLimit, Kind};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Nothing here takes longer on a machine that is not stuck.
const DEADLINE: Duration = Duration::from_secs(60);

struct LeaderAt {
    broker: Broker,
    leader: Leader,
    address: SocketAddr,
    accepting: JoinHandle<()>,
}

/// Short leases, so that a lost worker is noticed soon.
fn limits() -> Limits {
    Limits {
        lease: Duration::from_secs(3),
        margin: Duration::from_millis(100),
        ..Limits::default()
    }
}

impl LeaderAt {
    async fn start(folder: &Path, address: &str) -> Self {
        let mut options = BrokerOptions::new(folder);
        options.threads = true;
        let broker = Broker::open(options).expect("the store opens");
        let options = LeaderOptions { limits: limits() };
        let leader = Leader::start(&broker, options).await.expect("the leader starts");
        let listener = TcpListener::bind(address).await.expect("the port is free");
        let address = listener.local_addr().expect("it listens");
        let serving = leader.clone();
        let accepting = tokio::spawn(async move {
            let mut sessions = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                sessions.spawn(session::serve(
                    stream,
                    BytesMut::new(),
                    serving.clone(),
                    Open,
                    [(), (), ()],
                ));
            }
        });
        Self { broker, leader, address, accepting }
    }

    /// Ends without any goodbye, as a crash does.
    async fn crash(self) {
        self.accepting.abort();
        let _ = self.accepting.await;
        drop(self.leader);
        let broker = self.broker;
        // The leader's task holds the broker until it has seen that its handles are gone.
        tokio::task::spawn_blocking(move || broker.close()).await.expect("it ran").ok();
    }

    async fn counts(&self) -> Counts {
        self.leader.counts().await.expect("the leader lives")
    }

    async fn wait_for(&self, what: impl Fn(Counts) -> bool) {
        let wait = async {
            while !what(self.counts().await) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(DEADLINE, wait).await.expect("it happens in time");
    }
}

struct WorkerAt {
    stop: watch::Sender<bool>,
    task: JoinHandle<std::io::Result<()>>,
    _work: TempDir,
}

impl WorkerAt {
    fn start(leader: SocketAddr, execs: &Path, id: &str) -> Self {
        let work = TempDir::new().expect("a folder");
        let options = WorkerOptions {
            leader: leader.to_string(),
            worker_id: id.to_owned(),
            access: Access::default(),
            pattern: "job.assign.*".to_owned(),
            run: RunOptions {
                exec_dir: execs.to_owned(),
                work_dir: work.path().join("jobs"),
                limits: RunLimits::default(),
                // The programs of these tests note what they do beside themselves.
                sandbox: Sandbox { write: vec![execs.to_owned()], ..Sandbox::default() },
                outputs: None,
            },
            runner: Vec::new(),
            parallel: 4,
            drain: Duration::ZERO,
            cpu_cap: 2.0,
        };
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(gapless_jobs::work(options, stopped));
        Self { stop, task, _work: work }
    }

    /// Ends without any goodbye.
    async fn kill(self) {
        self.task.abort();
        let _ = self.task.await;
    }

    async fn stop(self) {
        self.stop.send_replace(true);
        self.task.await.expect("it ran").expect("it ends well");
    }
}

fn exec(folder: &Path, name: &str, script: &str) {
    let path = folder.join(name);
    std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("a script");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("its mode");
}

fn client(leaders: &[SocketAddr], id: &str) -> JobClient {
    JobClient::connect(ClientOptions {
        leaders: leaders.iter().map(ToString::to_string).collect(),
        client_id: id.to_owned(),
        access: Access::default(),
        cap: 8,
        policy: Policy::Home,
        grace: Duration::from_millis(300),
    })
}

fn job(number: u128, exec: &str, args: &[&str]) -> JobRequest {
    JobRequest {
        job_id: gapless_core::job::JobId(number).to_string(),
        client_id: "clientA".to_owned(),
        exec_name: exec.to_owned(),
        args: args.iter().map(ToString::to_string).collect(),
        retry_ms: Some(vec![1]),
        ..JobRequest::default()
    }
}

async fn done(client: &JobClient, request: &JobRequest) -> JobResult {
    let run = client.run(request);
    tokio::time::timeout(DEADLINE, run).await.expect("in time").expect("it is done")
}

#[tokio::test(flavor = "multi_thread")]
async fn e1_a_job_gets_its_files_and_arguments_and_its_result_what_it_left() {
    let (store, execs) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    exec(execs.path(), "calc", "cat in.txt; echo \"$1|$2\" >&2; echo out > result.txt; exit 3");
    let leader = LeaderAt::start(store.path(), "127.0.0.1:0").await;
    let worker = WorkerAt::start(leader.address, execs.path(), "w1");
    let client = client(&[leader.address], "clientA");
    let mut request = job(1, "calc", &["a b", "$HOME;`id`"]);
    request.files.insert("in.txt".to_owned(), gapless_jobs::wire::encode(b"hello\n"));
    let result = done(&client, &request).await;
    assert_eq!((result.status, result.exit_code), (Status::Failed, Some(3)));
    assert_eq!((&*result.stdout, &*result.stderr), ("hello\n", "a b|$HOME;`id`\n"));
    let archive = decode(&result.output_archive.expect("it left a file")).expect("base64");
    let mut archive = zip::ZipArchive::new(std::io::Cursor::new(archive)).expect("a zip");
    let names: Vec<String> =
        archive.file_names().map(|name| name.expect("a name").into_owned()).collect();
    assert_eq!(names, ["result.txt"], "only what it created");
    let mut text = String::new();
    std::io::Read::read_to_string(&mut archive.by_index(0).unwrap(), &mut text).unwrap();
    assert_eq!(text, "out\n");
    // The same id again is answered with the stored result; it does not run again.
    let again = done(&client, &request).await;
    assert_eq!((again.stdout, again.attempt), ("hello\n".to_owned(), Some(1)));
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e5_a_lost_worker_s_job_runs_elsewhere_and_both_attempts_never_count() {
    let (store, execs) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let gate = execs.path().join("gate");
    let ran = execs.path().join("ran");
    let script = format!(
        "echo x >> {ran}; while [ ! -e {gate} ]; do sleep 0.05; done; wc -l < {ran}",
        ran = ran.display(),
        gate = gate.display()
    );
    exec(execs.path(), "slow", &script);
    let leader = LeaderAt::start(store.path(), "127.0.0.1:0").await;
    let lost = WorkerAt::start(leader.address, execs.path(), "lost");
    let client = client(&[leader.address], "clientA");
    let request = job(1, "slow", &[]);
    let mut waiting = std::pin::pin!(client.run(&request));
    // The shell creates the file a moment before it writes the line.
    let until_runs = async {
        while std::fs::read_to_string(&ran).unwrap_or_default() != "x\n" {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        result = &mut waiting => panic!("it cannot be done yet: {result:?}"),
        () = until_runs => {}
    }
    lost.kill().await;
    let worker = WorkerAt::start(leader.address, execs.path(), "other");
    std::fs::write(&gate, "").unwrap();
    let result = tokio::time::timeout(DEADLINE, waiting).await.expect("in time").expect("done");
    assert_eq!((result.status, result.attempt), (Status::Ok, Some(2)));
    assert_eq!(result.stdout.trim(), "2", "it was started twice, one after the other");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e10_jobs_results_and_dead_jobs_survive_the_leader() {
    let (store, execs) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    exec(execs.path(), "good", "echo good");
    exec(execs.path(), "bad", "echo bad >&2; exit 9");
    let leader = LeaderAt::start(store.path(), "127.0.0.1:0").await;
    let address = leader.address;
    let client = client(&[address], "clientA");
    let worker = WorkerAt::start(address, execs.path(), "w1");
    assert_eq!(done(&client, &job(1, "good", &[])).await.stdout, "good\n");
    let retried =
        JobRequest { retry_exit_codes: vec![9], attempts_max: Some(2), ..job(2, "bad", &[]) };
    let dead = done(&client, &retried).await;
    assert_eq!((dead.status, dead.attempt), (Status::Dead, Some(2)));
    worker.stop().await;
    // A job is accepted, no worker is there, and the leader dies.
    let waiting = job(3, "good", &[]);
    let mut waiting = std::pin::pin!(client.run(&waiting));
    tokio::select! {
        result = &mut waiting => panic!("it cannot be done yet: {result:?}"),
        () = leader.wait_for(|counts| counts.ready == 1) => {}
    }
    leader.crash().await;
    let leader = LeaderAt::start(store.path(), &address.to_string()).await;
    assert_eq!(leader.counts().await, Counts { ready: 1, ended: 2, dead: 1, ..Counts::default() });
    let worker = WorkerAt::start(address, execs.path(), "w2");
    let result = tokio::time::timeout(DEADLINE, waiting).await.expect("in time").expect("done");
    assert_eq!((result.status, &*result.stdout), (Status::Ok, "good\n"));
    // Results of before are still there, and do not run again.
    assert_eq!(done(&client, &job(1, "good", &[])).await.attempt, Some(1));
    assert_eq!(done(&client, &retried).await.status, Status::Dead);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e8_a_leader_that_is_lost_for_good_loses_no_job() {
    let execs = TempDir::new().unwrap();
    exec(execs.path(), "echo", "echo \"$1\"");
    let stores = [TempDir::new().unwrap(), TempDir::new().unwrap()];
    let first = LeaderAt::start(stores[0].path(), "127.0.0.1:0").await;
    let second = LeaderAt::start(stores[1].path(), "127.0.0.1:0").await;
    let client = client(&[first.address, second.address], "clientA");
    let both = async { client.connected().wait_for(|count| *count == 2).await.map(|_| ()) };
    tokio::time::timeout(DEADLINE, both).await.expect("in time").expect("it lives");
    // Only the second has a worker, so whatever went to the first stays there.
    let worker = WorkerAt::start(second.address, execs.path(), "w");
    let texts: Vec<String> = (0..20).map(|number| number.to_string()).collect();
    let requests: Vec<JobRequest> = (0..20)
        .map(|number| job((number << 64) | (number * 77), "echo", &[&texts[number as usize]]))
        .collect();
    let mut at_first = 0;
    let client = Arc::new(client);
    let mut runs = Vec::new();
    for request in requests {
        let client = Arc::clone(&client);
        runs.push(tokio::spawn(async move { client.run(&request).await }));
    }
    let all = async {
        let mut results = Vec::new();
        for run in runs {
            results.push(run.await.expect("it ran").expect("it is done"));
        }
        results
    };
    let mut all = std::pin::pin!(all);
    let settled = async {
        loop {
            let (one, two) = (first.counts().await, second.counts().await);
            at_first = one.ready;
            if one.ready + two.ended == 20 && one.ready > 0 {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        results = &mut all => panic!("the first leader has jobs: {}", results.len()),
        done = tokio::time::timeout(DEADLINE, settled) => done.expect("they are accepted"),
    }
    assert!(at_first > 0);
    first.crash().await;
    let results = tokio::time::timeout(DEADLINE, all).await.expect("in time");
    let told: Vec<&str> = results.iter().map(|result| result.stdout.trim()).collect();
    assert_eq!(told, texts.iter().map(String::as_str).collect::<Vec<_>>());
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_forks_twice_and_ignores_signals_is_gone_after_cancel() {
    let (store, execs) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let pids = execs.path().join("pids");
    let script = format!(
        "trap '' TERM INT HUP; (setsid sh -c 'trap \"\" TERM; echo $$ >> {pids}; \
         while :; do sleep 0.1; done' &) ; \
         echo $$ >> {pids}; while :; do sleep 0.1; done",
        pids = pids.display()
    );
    exec(execs.path(), "stubborn", &script);
    let leader = LeaderAt::start(store.path(), "127.0.0.1:0").await;
    let worker = WorkerAt::start(leader.address, execs.path(), "w");
    let client = client(&[leader.address], "clientA");
    let request = job(1, "stubborn", &[]);
    let mut run = std::pin::pin!(client.run(&request));
    let read = || std::fs::read_to_string(&pids).unwrap_or_default();
    let both_run = async {
        while read().lines().count() < 2 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        result = &mut run => panic!("it never ends by itself: {result:?}"),
        () = both_run => {}
    }
    client.cancel(gapless_core::job::JobId(1)).await;
    let result = tokio::time::timeout(DEADLINE, run).await.expect("in time").expect("it ends");
    assert_eq!(result.status, Status::Cancelled);
    for pid in read().lines() {
        let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // A zombie that its parent has not looked at yet is dead too.
        assert!(state.is_empty() || state.contains(") Z "), "{pid} lives: {state}");
    }
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e2_e6_hostile_frames_and_credits_are_refused_and_others_go_on() {
    let (store, execs) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    exec(execs.path(), "good", "echo good");
    let leader = LeaderAt::start(store.path(), "127.0.0.1:0").await;
    let worker = WorkerAt::start(leader.address, execs.path(), "w");
    let frame = |kind: Kind, payload: &[u8]| Frame {
        kind: kind.number(),
        msg_id: [7; 16],
        corr_id: [0; 16],
        subject: Bytes::new(),
        payload: Bytes::copy_from_slice(payload),
    };
    let hello = frame(Kind::JobWorkerHello, b"{\"WorkerId\":\"evil\"}");
    let client_hello = frame(Kind::JobClientHello, b"{\"ClientId\":\"evil\"}");
    let too_long = (4 * 1024 * 1024_u32 + 1).to_le_bytes().to_vec();
    let cases: Vec<(Vec<Frame>, Vec<u8>)> = vec![
        (vec![], too_long),
        (vec![], b"GET / HTTP/1.1\r\n\r\n".to_vec()),
        (vec![frame(Kind::JobSubmit, b"{}")], vec![]),
        (vec![frame(Kind::JobClientHello, b"{\"ClientId\":\"\"}")], vec![]),
        (
            vec![frame(Kind::JobClientHello, b"{\"ClientId\":\"x\",\"DesiredParallelism\":0}")],
            vec![],
        ),
        (vec![hello.clone(), frame(Kind::JobCredit, &(-1_i32).to_le_bytes())], vec![]),
        (vec![hello.clone(), frame(Kind::JobCredit, &i32::MAX.to_le_bytes())], vec![]),
    ];
    for (frames, raw) in cases {
        let mut stream = TcpStream::connect(leader.address).await.unwrap();
        let mut bytes = BytesMut::new();
        frames.iter().for_each(|each| each.encode(FrameLimit::MAX, &mut bytes).unwrap());
        bytes.extend_from_slice(&raw);
        stream.write_all(&bytes).await.unwrap();
        let mut answer = Vec::new();
        let read = stream.read_to_end(&mut answer);
        // It is closed, orderly or not; it is never left open.
        let _ = tokio::time::timeout(DEADLINE, read).await.expect("it is closed");
    }
    // Answered with an error, and the connection goes on: wrong requests of a client.
    let mut stream = TcpStream::connect(leader.address).await.unwrap();
    let mut bytes = BytesMut::new();
    client_hello.encode(FrameLimit::MAX, &mut bytes).unwrap();
    for wrong in [&b"nonsense"[..], b"{\"JobId\":\"1\",\"ClientId\":\"a\",\"ExecName\":\"x\"}"] {
        frame(Kind::JobSubmit, wrong).encode(FrameLimit::MAX, &mut bytes).unwrap();
    }
    stream.write_all(&bytes).await.unwrap();
    let mut read = BytesMut::new();
    let mut kinds = Vec::new();
    while kinds.len() < 3 {
        match Decoder::new(FrameLimit::MAX).decode(&mut read).unwrap() {
            Some(frame) => kinds.push(Kind::from_number(frame.kind).unwrap()),
            None => {
                let more = stream.read_buf(&mut read);
                tokio::time::timeout(DEADLINE, more).await.expect("an answer").unwrap();
            }
        }
    }
    assert_eq!(kinds, [Kind::JobWelcome, Kind::JobAnswer, Kind::JobAnswer]);
    let client = client(&[leader.address], "clientA");
    assert_eq!(done(&client, &job(1, "good", &[])).await.status, Status::Ok);
    let outside = JobRequest { exec_name: "../good".to_owned(), ..job(2, "good", &[]) };
    assert!(matches!(client.run(&outside).await, Err(SubmitError::Refused(_))));
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_runs_its_job_again_and_again_also_after_the_leader_started_again() {
    let (store, execs) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let ran = execs.path().join("ran");
    exec(execs.path(), "tick", &format!("echo $GAPLESS_JOB_ID $1 >> {}", ran.display()));
    let leader = LeaderAt::start(store.path(), "127.0.0.1:0").await;
    let address = leader.address;
    let worker = WorkerAt::start(address, execs.path(), "w");
    let client = client(&[address], "clientA");
    let (events, mut happened) = tokio::sync::mpsc::channel(16);
    let each_second = JobRequest { cron: Some("* * * * * *".to_owned()), ..job(1, "tick", &["x"]) };
    let mut schedule = std::pin::pin!(client.follow(&each_second, events));
    tokio::select! {
        result = &mut schedule => panic!("a schedule has no result: {result:?}"),
        event = happened.recv() => assert_eq!(event, Some(JobEvent::Accepted(false))),
    }
    let lines = || std::fs::read_to_string(&ran).unwrap_or_default().lines().count();
    let reaches = async |count: usize| {
        let wait = async {
            while lines() < count {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(DEADLINE, wait).await.expect("it runs in time");
    };
    reaches(2).await;
    leader.crash().await;
    let leader = LeaderAt::start(store.path(), &address.to_string()).await;
    let before = lines();
    reaches(before + 2).await;
    let text = std::fs::read_to_string(&ran).unwrap();
    let ids: std::collections::BTreeSet<&str> = text.lines().collect();
    assert_eq!(ids.len(), text.lines().count(), "each has an id of its own: {text}");
    assert!(text.lines().all(|line| line.ends_with(" x")), "{text}");
    client.cancel(gapless_core::job::JobId(1)).await;
    let ended = tokio::time::timeout(DEADLINE, schedule).await.expect("in time");
    assert_eq!(ended.expect("it is cancelled").status, Status::Cancelled);
    worker.stop().await;
    drop(leader);
}

#[tokio::test(flavor = "multi_thread")]
async fn functions_of_a_process_do_jobs_and_a_panic_fails_only_its_own() {
    let store = TempDir::new().unwrap();
    let leader = LeaderAt::start(store.path(), "127.0.0.1:0").await;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let worker = Worker::connect(leader.address.to_string(), "in-process")
        .unwrap()
        .handle("add", |job| async move {
            job.say("adding\n");
            let numbers: Result<Vec<i64>, _> = job.args().iter().map(|arg| arg.parse()).collect();
            Ok(numbers.map_err(Failure::from)?.iter().sum::<i64>().to_string())
        })
        .unwrap()
        .handle("odd", |job| async move {
            match job.request().attempt {
                Some(1) => Err(Failure::Again("not yet".to_owned())),
                Some(2) => Ok("now".to_owned()),
                _ => panic!("this never happens"),
            }
        })
        .unwrap()
        .handle("breaks", |_| async move { panic!("on purpose") })
        .unwrap()
        .handle("hangs", |_| std::future::pending())
        .unwrap();
    let worker = tokio::spawn(worker.run(async { drop(stopped.await) }));
    let client = client(&[leader.address], "clientA");
    let (events, mut happened) = tokio::sync::mpsc::channel(16);
    let request = job(1, "add", &["2", "40"]);
    let sum = tokio::time::timeout(DEADLINE, client.follow(&request, events)).await;
    assert_eq!(sum.expect("in time").expect("it is done").stdout, "42");
    let mut said = Vec::new();
    while let Some(event) = happened.recv().await {
        said.push(event);
    }
    assert_eq!(said[0], JobEvent::Accepted(false));
    let wrong = done(&client, &job(2, "add", &["2", "x"])).await;
    assert_eq!((wrong.status, wrong.stdout.as_str()), (Status::Failed, ""));
    let again = done(&client, &job(3, "odd", &[])).await;
    assert_eq!((again.status, again.attempt, &*again.stdout), (Status::Ok, Some(2), "now"));
    assert_eq!(done(&client, &job(4, "breaks", &[])).await.status, Status::Failed);
    assert_eq!(done(&client, &job(5, "add", &["1"])).await.stdout, "1");
    let hanging = job(6, "hangs", &[]);
    let mut run = std::pin::pin!(client.run(&hanging));
    tokio::select! {
        result = &mut run => panic!("it never ends by itself: {result:?}"),
        () = leader.wait_for(|counts| counts.running == 1) => {}
    }
    client.cancel(gapless_core::job::JobId(6)).await;
    let result = tokio::time::timeout(DEADLINE, run).await.expect("in time").expect("it ends");
    assert_eq!(result.status, Status::Cancelled);
    drop(stop);
    worker.await.expect("it ends well");
}
