//! Where jobs are: the indexes, and every way from one phase to another.

use super::*;

impl Leader {
    /// Open jobs queue up, and running ones get a full lease: their workers may still be at it.
    pub(super) fn restored(&mut self, now: Timestamp) {
        let lease_ends = now.after(self.limits.lease + self.limits.margin);
        for id in self.jobs.keys().copied().collect::<Vec<_>>() {
            let phase = self.jobs[&id].phase.clone();
            match phase {
                Phase::Blocked => self.admit(now, id),
                Phase::Running(run) => {
                    self.set_phase(id, Phase::Running(Run { lease_ends, ..run }));
                }
                _ => {}
            }
        }
    }

    /// Puts a job into every index but the queues; [`Leader::admit`] does that.
    pub(super) fn insert(&mut self, record: Record) {
        let Record { spec, number, submitted, attempt, failures, deaths, origin, cap, stage } =
            record;
        let id = spec.id;
        assert!(!self.jobs.contains_key(&id), "a job is there once");
        let client = self.client_no(&spec.client);
        let exec = self.exec_no(&spec.exec);
        self.next_number = self.next_number.max(number + 1);
        let (phase, until) = match stage {
            Stage::Open { until } => (Phase::Blocked, until),
            Stage::Running { worker, started, cancel } => {
                let worker = self.worker_no(&worker);
                self.workers.get_mut(&worker).expect("it is known").running.insert(id);
                let run = Run { worker, started, lease_ends: started, cancel, charged_ms: 0 };
                (Phase::Running(run), Timestamp(0))
            }
            Stage::Ended { how, at } => (Phase::Ended { how, at }, Timestamp(0)),
        };
        let open = !matches!(phase, Phase::Ended { .. });
        if open {
            let client = self.clients.get_mut(&client).expect("it is known");
            client.open_jobs += 1;
            client.cap = cap.or(client.cap);
            *self.exec_jobs.entry(exec).or_default() += 1;
            if let Some(unique) = spec.unique.as_ref().filter(|_| spec.cron.is_none()) {
                self.unique.insert(Arc::clone(unique), id);
            }
        }
        if let Some(schedule) = origin {
            *self.made_by.entry(schedule).or_default() += 1;
        }
        for before in &spec.after {
            self.dependents.entry(*before).or_default().insert(id);
        }
        if let (Phase::Running(_), Some(key)) = (&phase, &spec.key) {
            self.keys.entry(Arc::clone(key)).or_default().holder = id;
        }
        let running = matches!(phase, Phase::Running(_));
        let watchers = Vec::new();
        let job = Job {
            spec,
            client,
            exec,
            number,
            submitted,
            attempt,
            failures,
            deaths,
            phase,
            until,
            origin,
            cap,
            watchers,
        };
        self.counts.add(&job.phase, 1);
        self.by_state.insert((State::of(&job.phase), number), id);
        if let Some(at) = job.deadline(self.limits.keep) {
            self.deadlines.insert((at, id));
        }
        self.jobs.insert(id, job);
        if running {
            self.in_flight(client, 1);
        }
        if !open {
            self.drop_unused_exec(exec);
            self.forget_idle_client(client);
        }
    }

    /// Takes a job out of every index.
    pub(super) fn remove(&mut self, id: JobId) {
        let job = self.jobs.remove(&id).expect("it is known");
        assert!(!job.is_open(), "only an ended job is removed");
        self.counts.add(&job.phase, -1);
        self.by_state.remove(&(State::of(&job.phase), job.number));
        if let Some(at) = job.deadline(self.limits.keep) {
            self.deadlines.remove(&(at, id));
        }
        if let Some(schedule) = job.origin {
            let left = self.made_by.get_mut(&schedule).expect("it was counted");
            *left -= 1;
            if *left == 0 {
                self.made_by.remove(&schedule);
            }
        }
        for before in &job.spec.after {
            if let Some(waiting) = self.dependents.get_mut(before) {
                waiting.remove(&id);
                if waiting.is_empty() {
                    self.dependents.remove(before);
                }
            }
        }
    }

    pub(super) fn exec_no(&mut self, name: &Arc<str>) -> ExecNo {
        let (no, new) = self.turn.exec(name);
        if new {
            let run_it = |worker: &Worker| {
                worker.pattern.as_ref().is_some_and(|pattern| runs(pattern, name))
            };
            let takers = self.workers.iter().filter(|(_, worker)| run_it(worker));
            takers.for_each(|(worker, _)| self.turn.runs(*worker, no));
        }
        no
    }

    pub(super) fn drop_unused_exec(&mut self, exec: ExecNo) {
        if !self.exec_jobs.contains_key(&exec) {
            self.turn.forget_exec(exec);
        }
    }

    /// Moves a job that is neither running nor ended to where it belongs now.
    pub(super) fn admit(&mut self, now: Timestamp, id: JobId) {
        let job = &self.jobs[&id];
        let place = place_of(job, self.limits.age_step);
        let phase = if job.spec.cron.is_some() {
            // It waits for its time even if that has come, and then it is not the one that runs.
            Phase::Delayed(job.until)
        } else if job.spec.after.iter().any(|before| self.waits_for(job, *before)) {
            Phase::Blocked
        } else if job.until > now {
            Phase::Delayed(job.until)
        } else if let Some(name) = &job.spec.key {
            match self.keys.get_mut(name) {
                Some(key) if key.holder != id => {
                    key.waiting.insert(place);
                    Phase::KeyBusy
                }
                Some(_) => Phase::Ready,
                None => {
                    self.keys.insert(Arc::clone(name), Key { holder: id, ..Key::default() });
                    Phase::Ready
                }
            }
        } else {
            Phase::Ready
        };
        self.set_phase(id, phase);
    }

    /// The one way to change where a job is.
    pub(super) fn set_phase(&mut self, id: JobId, phase: Phase) {
        let job = self.jobs.get_mut(&id).expect("it is known");
        let before = job.deadline(self.limits.keep);
        let place = place_of(job, self.limits.age_step);
        let (client, exec, number) = (job.client, job.exec, job.number);
        let ready = phase == Phase::Ready;
        self.counts.add(&phase, 1);
        let state = State::of(&phase);
        let old = core::mem::replace(&mut job.phase, phase);
        let after = job.deadline(self.limits.keep);
        before.iter().for_each(|at| {
            self.deadlines.remove(&(*at, id));
        });
        after.iter().for_each(|at| {
            self.deadlines.insert((*at, id));
        });
        self.counts.add(&old, -1);
        self.by_state.remove(&(State::of(&old), number));
        self.by_state.insert((state, number), id);
        if old == Phase::Ready {
            self.turn.remove(exec, client, place);
        }
        if ready {
            self.turn.push(exec, client, place);
        }
    }

    pub(super) fn in_flight(&mut self, no: ClientNo, by: i32) {
        let client = self.clients.get_mut(&no).expect("a running job's client is known");
        client.in_flight = client.in_flight.checked_add_signed(by).expect("counted both ways");
        let cap = client.cap.unwrap_or(self.limits.cap);
        self.turn.set_below_cap(no, client.in_flight < cap);
    }

    /// Whether a job waits for this one, which has not ended. One that is forgotten had ended, and
    /// those that waited for it were decided then; a later job under its id is another one.
    pub(super) fn waits_for(&self, job: &Job, before: JobId) -> bool {
        let named = self.named_at(job);
        self.jobs.get(&before).is_some_and(|before| before.number < named && before.is_open())
    }

    /// The submission in which a job named those it waits for: its own, or that of its schedule.
    fn named_at(&self, job: &Job) -> u64 {
        let schedule = job.origin.and_then(|schedule| self.jobs.get(&schedule));
        schedule.map_or(job.number, |schedule| schedule.number)
    }

    /// Whether a job that this one waits for ended without success.
    pub(super) fn failed_dependency(&self, id: JobId) -> bool {
        let job = &self.jobs[&id];
        let named = self.named_at(job);
        let failed = |before: &JobId| match self.jobs.get(before) {
            Some(before) if before.number < named => {
                matches!(before.phase, Phase::Ended { how, .. } if how != End::Succeeded)
            }
            _ => false,
        };
        job.spec.after.iter().any(failed)
    }

    /// The attempt is over, whatever comes next.
    pub(super) fn leave_worker(&mut self, now: Timestamp, id: JobId) {
        let job = &self.jobs[&id];
        let Phase::Running(run) = &job.phase else { return };
        let (client, exec, worker) = (job.client, job.exec, run.worker);
        let ran_ms = now.since(run.started).as_millis() as u64;
        let differs = i64::try_from(ran_ms).unwrap_or(i64::MAX) - run.charged_ms as i64;
        self.turn.ran(exec, ran_ms);
        self.turn.charge(exec, client, differs);
        self.workers.get_mut(&worker).expect("it ran there").running.remove(&id);
        self.set_phase(id, Phase::Blocked);
        self.in_flight(client, -1);
        self.release_key(now, id);
        self.forget_idle_worker(worker);
    }

    pub(super) fn release_key(&mut self, now: Timestamp, id: JobId) {
        let job = &self.jobs[&id];
        let Some(name) = job.spec.key.clone() else { return };
        let place = place_of(job, self.limits.age_step);
        let Some(key) = self.keys.get_mut(&name) else { return };
        key.waiting.remove(&place);
        if key.holder != id {
            return;
        }
        match key.waiting.pop_first() {
            Some(next) => {
                key.holder = next.job;
                self.admit(now, next.job);
            }
            None => {
                self.keys.remove(&name);
            }
        }
    }

    /// Ends a job, and with it those that waited for a success that will not come.
    pub(super) fn end(&mut self, now: Timestamp, id: JobId, how: End, effects: &mut Vec<Effect>) {
        let mut ending = alloc::vec![(id, how)];
        while let Some((id, how)) = ending.pop() {
            // It may have waited for several of them.
            if !self.jobs[&id].is_open() {
                continue;
            }
            self.leave_worker(now, id);
            self.set_phase(id, Phase::Ended { how, at: now });
            self.release_key(now, id);
            let job = self.jobs.get_mut(&id).expect("it is known");
            let (client, exec, number) = (job.client, job.exec, job.number);
            let unique = job.spec.unique.clone();
            let watchers = core::mem::take(&mut job.watchers);
            if let Some(unique) = unique.filter(|unique| self.unique.get(unique) == Some(&id)) {
                self.unique.remove(&unique);
            }
            effects.push(Effect::Save(id));
            for session in watchers {
                if self.sessions.contains_key(&session) {
                    effects.push(Effect::Result { session, job: id });
                }
            }
            let owner = self.clients.get_mut(&client).expect("it is known");
            owner.open_jobs -= 1;
            job.cap = owner.cap;
            self.forget_idle_client(client);
            let left = self.exec_jobs.get_mut(&exec).expect("it was counted");
            *left -= 1;
            if *left == 0 {
                self.exec_jobs.remove(&exec);
                self.turn.forget_exec(exec);
            }
            for waiting in self.dependents.get(&id).cloned().unwrap_or_default() {
                let other = &self.jobs[&waiting];
                // A schedule waits for its time meanwhile, and ends all the same.
                let is_schedule = other.spec.cron.is_some() && other.is_open();
                let is_blocked = matches!(other.phase, Phase::Blocked);
                if self.named_at(other) < number || !(is_blocked || is_schedule) {
                    continue;
                }
                if how != End::Succeeded {
                    ending.push((waiting, End::Dependency));
                } else if is_blocked {
                    self.admit(now, waiting);
                }
            }
        }
    }
}
