//! One run: who takes part, in which folder, and how rounds alternate.

use std::path::Path;
use std::time::{Duration, Instant};

use gapless_bench::process::cpu_time;

use super::plan::Plan;
use super::report::{Counts, Line, Measured, Report};
use super::server::{Programs, Server, check_interrupt};
use super::systems::{Contender, Who};
use crate::benches::store::{Folder, Result};

/// The run under way.
pub(super) struct Run<'a> {
    pub(super) programs: &'a Programs,
    pub(super) dir: &'a Path,
    pub(super) plan: &'a Plan,
    pub(super) report: &'a mut Report,
}

/// A server and its folder, both gone when dropped.
pub(super) struct Stage {
    /// Before the folder, so that it ends before its files go.
    pub(super) server: Server,
    pub(super) folder: Folder,
}

impl Run<'_> {
    /// Those of a list that are there.
    pub(super) fn present(&self, contenders: Vec<Contender>) -> Vec<Contender> {
        contenders.into_iter().filter(|each| self.programs.of(each.who).is_some()).collect()
    }

    /// Each contender in turn, and all of them again for each round: so that all see the same
    /// weather. Nothing if the case is not asked for.
    pub(super) fn alternate(
        &mut self,
        (case, rounds): (&str, usize),
        contenders: Vec<Contender>,
        mut measure: impl FnMut(&mut Self, &Contender) -> Result<()>,
    ) -> Result<()> {
        if !self.plan.has_case(case) {
            return Ok(());
        }
        self.tell(case);
        let contenders = self.present(contenders);
        for _ in 0..rounds {
            for contender in &contenders {
                check_interrupt()?;
                measure(self, contender)
                    .map_err(|error| format!("{}: {error}", contender.name()))?;
            }
        }
        Ok(())
    }

    /// A fresh server in a fresh folder.
    pub(super) fn stage(&self, contender: &Contender) -> Result<Stage> {
        let name = contender.name().replace(|letter: char| !letter.is_alphanumeric(), "-");
        let folder = Folder::fresh(self.dir, &name)?;
        let server = Server::start(self.programs, contender, folder.path())?;
        Ok(Stage { server, folder })
    }

    /// Adds a figure to the report.
    pub(super) fn add(
        &mut self,
        work: &str,
        (title, counts): (&str, Counts),
        contender: &Contender,
        measured: Measured,
    ) -> &mut Line {
        let line = (contender.name(), contender.who != Who::Gapless);
        self.report.add((work, title, counts), line, &measured)
    }

    /// Adds a figure of one who is no contender and stands beside, as a limit does.
    pub(super) fn add_beside(
        &mut self,
        work: &str,
        (title, counts): (&str, Counts),
        name: &str,
        measured: Measured,
    ) {
        self.report.add((work, title, counts), (name.to_owned(), true), &measured);
    }

    /// Says what is being measured, for those who wait.
    pub(super) fn tell(&self, what: &str) {
        eprintln!("{:>5.0} s  {what}", self.plan.started.elapsed().as_secs_f64());
    }
}

/// The clocks of a measurement: time, and CPU of both sides.
pub(super) struct Meter {
    started: Instant,
    server: Duration,
    client: Duration,
}

impl Meter {
    pub(super) fn start(server: &Server) -> Result<Self> {
        let (server, client) = (server.cpu_time()?, cpu_time()?);
        Ok(Self { started: Instant::now(), server, client })
    }

    /// What so many operations have cost, as a rate.
    pub(super) fn rate(&self, server: &Server, operations: u64) -> Result<Measured> {
        let took = self.started.elapsed().as_secs_f64();
        Ok(Measured { figure: operations as f64 / took, ..self.cost(server, operations)? })
    }

    /// The same with a figure of its own.
    pub(super) fn cost(&self, server: &Server, operations: u64) -> Result<Measured> {
        Ok(Measured {
            figure: 0.0,
            server_cpu: server.cpu_time()?.saturating_sub(self.server).as_secs_f64(),
            client_cpu: cpu_time()?.saturating_sub(self.client).as_secs_f64(),
            operations: operations as f64,
            peak_bytes: server.resident_bytes_max()? as f64,
        })
    }
}
