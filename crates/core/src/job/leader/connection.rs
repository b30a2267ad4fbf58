//! Connections of clients and workers, and credit.

use super::*;

impl Leader {
    pub(super) fn client_no(&mut self, name: &Arc<str>) -> ClientNo {
        if let Some(no) = self.client_names.get(name) {
            return *no;
        }
        self.next_no += 1;
        let no = self.next_no;
        let client = Client {
            name: Arc::clone(name),
            cap: None,
            in_flight: 0,
            open_jobs: 0,
            sessions: BTreeSet::new(),
        };
        self.clients.insert(no, client);
        self.client_names.insert(Arc::clone(name), no);
        self.turn.add_client(no, 1);
        no
    }

    pub(super) fn worker_no(&mut self, id: &WorkerId) -> WorkerNo {
        if let Some(no) = self.worker_ids.get(id) {
            return *no;
        }
        self.next_no += 1;
        let no = self.next_no;
        let worker = Worker {
            id: id.clone(),
            session: None,
            connected: false,
            silent: false,
            pattern: None,
            credit: 0,
            running: BTreeSet::new(),
            unnamed: Vec::new(),
        };
        self.workers.insert(no, worker);
        self.worker_ids.insert(id.clone(), no);
        self.turn.add_worker(no);
        no
    }

    pub(super) fn client_came(&mut self, session: Session, name: &Arc<str>, cap: u32, weight: u32) {
        if self.sessions.contains_key(&session) {
            self.gone(session);
        }
        let no = self.client_no(name);
        self.turn.add_client(no, weight);
        self.sessions.insert(session, Role::Client(no));
        let client = self.clients.get_mut(&no).expect("it was just made");
        client.sessions.insert(session);
        client.cap = Some(cap);
        self.in_flight(no, 0);
    }

    /// A worker that is back goes on with the attempts it names. Those it does not name are
    /// lost: it has swept away what was left of them. But a hello may have been under way for long,
    /// and the worker may have given that connection up and be at others by now. So they are lost
    /// when it speaks again on this connection: it has the answer then, and goes on here.
    pub(super) fn worker_came(
        &mut self,
        now: Timestamp,
        (session, id, pattern): (Session, &WorkerId, Pattern),
        running: &[Token],
        effects: &mut Vec<Effect>,
    ) {
        let no = self.seat_worker(session, id, pattern, effects);
        let had = self.workers[&no].running.iter().map(|job| self.jobs[job].token());
        let unnamed = had.filter(|token| !running.contains(token)).collect();
        let worker = self.workers.get_mut(&no).expect("it was just seated");
        (worker.connected, worker.unnamed) = (true, unnamed);
        running.iter().for_each(|token| self.renew(now, session, *token, effects));
    }

    /// A connection is where a worker takes jobs from now on; an earlier one gives way.
    pub(super) fn seat_worker(
        &mut self,
        session: Session,
        id: &WorkerId,
        pattern: Pattern,
        effects: &mut Vec<Effect>,
    ) -> WorkerNo {
        if self.sessions.contains_key(&session) {
            self.gone(session);
        }
        if let Some(before) = self.worker_ids.get(id).and_then(|no| self.workers[no].session) {
            effects.push(Effect::Close { session: before, why: Closing::Replaced });
            self.gone(before);
        }
        let no = self.worker_no(id);
        self.sessions.insert(session, Role::Worker(no));
        let execs: Vec<ExecNo> =
            self.turn.execs().filter(|(_, exec)| runs(&pattern, exec)).map(|(no, _)| no).collect();
        // It may have come back with another pattern.
        self.turn.forget_worker(no);
        self.turn.add_worker(no);
        execs.into_iter().for_each(|exec| self.turn.runs(no, exec));
        let worker = self.workers.get_mut(&no).expect("it was just made");
        worker.session = Some(session);
        worker.connected = false;
        worker.silent = false;
        worker.unnamed.clear();
        worker.pattern = Some(pattern);
        no
    }

    pub(super) fn gone(&mut self, session: Session) {
        match self.sessions.remove(&session) {
            Some(Role::Client(no)) => {
                self.clients.get_mut(&no).expect("a session's client").sessions.remove(&session);
                self.forget_idle_client(no);
            }
            Some(Role::Worker(no)) => {
                // A worker without a connection is forgotten with its last attempt.
                let Some(worker) = self.workers.get_mut(&no) else { return };
                if worker.session == Some(session) {
                    worker.session = None;
                    worker.connected = false;
                    worker.silent = false;
                    worker.unnamed.clear();
                    worker.credit = 0;
                    self.turn.set_free(no, false);
                }
                self.forget_idle_worker(no);
            }
            Some(Role::Observer) | None => {}
        }
    }

    pub(super) fn forget_idle_client(&mut self, no: ClientNo) {
        let client = &self.clients[&no];
        if client.sessions.is_empty() && client.open_jobs == 0 {
            self.client_names.remove(&client.name);
            self.clients.remove(&no);
            self.turn.forget_client(no);
        }
    }

    pub(super) fn forget_idle_worker(&mut self, no: WorkerNo) {
        let worker = &self.workers[&no];
        if worker.session.is_none() && worker.running.is_empty() {
            self.worker_ids.remove(&worker.id);
            self.workers.remove(&no);
            self.turn.forget_worker(no);
        }
    }

    pub(super) fn credit(&mut self, session: Session, more: i32, effects: &mut Vec<Effect>) {
        let Some(Role::Worker(no)) = self.sessions.get(&session).copied() else { return };
        let worker = self.workers.get_mut(&no).filter(|worker| worker.session == Some(session));
        let Some(worker) = worker else { return };
        let more = u32::try_from(more).ok().filter(|more| *more > 0);
        match more.map(|more| worker.credit.saturating_add(more)) {
            Some(credit) if credit <= CREDIT_MAX => {
                worker.credit = credit;
                self.turn.set_free(no, true);
            }
            _ => effects.push(Effect::Close { session, why: Closing::BadCredit }),
        }
    }

    /// What is left of a worker's credit is void; says how much that was.
    pub(super) fn void_credit(&mut self, session: Session) -> u32 {
        let Some(Role::Worker(no)) = self.sessions.get(&session).copied() else { return 0 };
        let worker = self.workers.get_mut(&no).filter(|worker| worker.session == Some(session));
        let Some(worker) = worker else { return 0 };
        self.turn.set_free(no, false);
        core::mem::take(&mut worker.credit)
    }

    /// A lease of a worker ran out. If it is connected it is stuck, and would only hold up what it is
    /// given.
    pub(super) fn fell_silent(&mut self, no: WorkerNo) {
        let worker = self.workers.get_mut(&no).expect("it has a job");
        if worker.connected {
            worker.silent = true;
            self.turn.set_free(no, false);
        }
    }

    /// A worker spoke.
    pub(super) fn heard(&mut self, now: Timestamp, session: Session, effects: &mut Vec<Effect>) {
        let Some(Role::Worker(no)) = self.sessions.get(&session).copied() else { return };
        let worker = self.workers.get_mut(&no).filter(|worker| worker.session == Some(session));
        let Some(worker) = worker else { return };
        if core::mem::take(&mut worker.silent) {
            self.turn.set_free(no, worker.credit > 0);
        }
        for token in core::mem::take(&mut worker.unnamed) {
            if self.has(session, token) {
                self.lost(now, token.job, effects);
            }
        }
    }
}
