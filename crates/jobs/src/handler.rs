//! Jobs that are functions of this process instead of programs.
//!
//! Each function has a connection to the leader of its own, so that only its jobs come here. A
//! function that panics fails its job and nothing else; one whose job is cancelled, or whose lease
//! is lost, is dropped where it awaits.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use gapless_core::job::leader::{ASSIGN_PREFIX, CREDIT_MAX};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::access::Access;
use crate::names::new_id;
use crate::run::{self, Orders};
use crate::wire::{
    JobProgress, JobRequest, JobResult, RequestError, Status, Stream, decode, exec_name, name,
};
use crate::worker::{Executor, Link, take_jobs};

/// A job, as a function gets it.
pub struct Job {
    request: JobRequest,
    progress: mpsc::Sender<JobProgress>,
}

impl Job {
    /// All that the client asked for, with the number of the attempt.
    pub fn request(&self) -> &JobRequest {
        &self.request
    }

    /// Its arguments.
    pub fn args(&self) -> &[String] {
        &self.request.args
    }

    /// An input file; `None` if there is none of this name.
    pub fn file(&self, name: &str) -> Option<Vec<u8>> {
        self.request.files.get(name).and_then(|content| decode(content).ok())
    }

    /// Passes on how far it is to a client that follows. What is not taken in time is dropped.
    pub fn say(&self, text: impl Into<String>) {
        let _ = self.progress.try_send(JobProgress {
            job_id: self.request.job_id.clone(),
            attempt: self.request.attempt.unwrap_or(0),
            epoch: self.request.epoch.clone().unwrap_or_default(),
            stream: Stream::Stdout,
            text: text.into(),
        });
    }
}

/// Why a function did not do its job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It failed, and would again.
    Final(String),
    /// It failed, and is to be tried again, as often as the request allows.
    Again(String),
}

impl<T: ToString> From<T> for Failure {
    fn from(why: T) -> Self {
        Self::Final(why.to_string())
    }
}

type Done = Pin<Box<dyn Future<Output = Result<String, Failure>> + Send>>;

/// A function that does jobs.
pub(crate) struct Handler(Box<dyn Fn(Job) -> Done + Send + Sync>);

impl Handler {
    pub(crate) async fn run(
        &self,
        request: JobRequest,
        mut orders: watch::Receiver<Orders>,
        progress: mpsc::Sender<JobProgress>,
    ) -> JobResult {
        let mut result = run::result_of(&request);
        let mut task = tokio::spawn((self.0)(Job { request, progress }));
        let done = tokio::select! {
            done = &mut task => done,
            why = run::stopped(&mut orders) => {
                task.abort();
                let _ = task.await;
                run::note_stop(why, &mut result);
                return result;
            }
        };
        match done {
            Ok(Ok(stdout)) => result.stdout = stdout,
            Ok(Err(failure)) => {
                let (why, again) = match failure {
                    Failure::Final(why) => (why, false),
                    Failure::Again(why) => (why, true),
                };
                result.status = Status::Failed;
                result.reason = Some(why);
                result.retryable = again;
            }
            Err(_) => {
                result.status = Status::Failed;
                result.reason = Some("the function panicked".to_owned());
            }
        }
        run::fit(&mut result);
        result
    }
}

/// A worker whose jobs are functions of this process.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use gapless_jobs::Worker;
///
/// Worker::connect("127.0.0.1:4281", "shop-1")?
///     .handle("resize", |job| async move {
///         let picture = job.file("photo.jpg").ok_or("there is no photo.jpg")?;
///         job.say("half of it\n");
///         Ok(format!("{} bytes", picture.len()))
///     })?
///     .run(std::future::pending())
///     .await;
/// # Ok(())
/// # }
/// ```
pub struct Worker {
    leader: String,
    worker_id: String,
    access: Access,
    parallel: u32,
    handlers: Vec<(Arc<str>, Handler)>,
}

impl Worker {
    /// A worker of this leader, under a name that no other worker has. It connects when it runs,
    /// and again whenever the connection is lost.
    ///
    /// # Errors
    /// When the name cannot be one.
    pub fn connect(
        leader: impl Into<String>,
        worker_id: impl Into<String>,
    ) -> Result<Self, RequestError> {
        let worker_id = worker_id.into();
        name("WorkerId", &worker_id)?;
        let leader = leader.into();
        Ok(Self { leader, worker_id, access: Access::default(), parallel: 4, handlers: Vec::new() })
    }

    /// By what it proves who it is.
    #[must_use]
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.access.token = Some(token.into());
        self
    }

    /// Which authorities are trusted, and by which certificate it proves who it is; without it there
    /// is no TLS.
    #[must_use]
    pub fn tls(mut self, tls: Arc<rustls::ClientConfig>) -> Self {
        self.access.tls = Some(tls);
        self
    }

    /// How many jobs of each function run at a time, 1 to 1024; 4 if it is not said.
    #[must_use]
    pub fn parallel(mut self, jobs: u32) -> Self {
        self.parallel = jobs.clamp(1, CREDIT_MAX);
        self
    }

    /// Jobs for this executable are done by this function. What it returns is the job's output.
    ///
    /// # Errors
    /// When that cannot be the name of an executable.
    pub fn handle<F, R>(mut self, exec: &str, function: F) -> Result<Self, RequestError>
    where
        F: Fn(Job) -> R + Send + Sync + 'static,
        R: Future<Output = Result<String, Failure>> + Send + 'static,
    {
        let boxed = move |job| Box::pin(function(job)) as Done;
        self.handlers.push((exec_name(exec)?, Handler(Box::new(boxed))));
        Ok(self)
    }

    /// Does jobs until `ended`; what runs then is stopped, and runs again elsewhere.
    pub async fn run(self, ended: impl Future<Output = ()>) {
        let (stop, stopped) = watch::channel(false);
        let mut workers = JoinSet::new();
        for (exec, handler) in self.handlers {
            let link = Link {
                leader: self.leader.clone(),
                worker_id: format!("{}-{exec}", self.worker_id),
                instance: new_id().to_string(),
                access: self.access.clone(),
                pattern: format!("{ASSIGN_PREFIX}{exec}"),
                parallel: self.parallel,
                // Functions share the process with other work, which knows best what it takes on.
                cpu_cap: f64::INFINITY,
                drain: Duration::ZERO,
            };
            workers.spawn(take_jobs(link, Executor::Handler(handler), stopped.clone()));
        }
        ended.await;
        stop.send_replace(true);
        while workers.join_next().await.is_some() {}
    }
}
