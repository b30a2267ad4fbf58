//! Random lives of a log, ended by crashes, against a model of what it owes.

use proptest::prelude::*;

use super::*;

/// One thing that happens to a log.
#[derive(Debug, Clone)]
enum Step {
    Append(usize),
    Flush,
    Prepare,
    /// Trims this share of what is flushed, in quarters.
    Trim(u64),
    Crash(CrashKind),
    /// Crashes within the nth write from now.
    CrashWithin(u64, CrashKind),
    /// Crashes, and then once more within the nth write of opening.
    CrashOpening(u64, CrashKind),
    FailFlush,
    Fill,
}

fn step() -> impl Strategy<Value = Step> {
    let kind = prop_oneof![Just(CrashKind::Power), Just(CrashKind::Process)];
    let within = (1u64..4, kind.clone());
    let opening = (1u64..6, kind.clone());
    prop_oneof![
        10 => (0usize..20_000).prop_map(Step::Append),
        5 => (0usize..300).prop_map(Step::Append),
        5 => Just(Step::Flush),
        2 => Just(Step::Prepare),
        2 => (0u64..=4).prop_map(Step::Trim),
        2 => kind.prop_map(Step::Crash),
        2 => within.prop_map(|(nth, kind)| Step::CrashWithin(nth, kind)),
        2 => opening.prop_map(|(nth, kind)| Step::CrashOpening(nth, kind)),
        1 => Just(Step::FailFlush),
        1 => Just(Step::Fill),
    ]
}

/// What the log owes, and the one who writes to it.
struct Life {
    fs: FaultyFs,
    /// `None` from a crash until the next opening.
    taken: Option<TakeOver>,
    /// All frames, from lsn 1 on, trimmed ones included.
    frames: Vec<Bytes>,
    /// A frame whose append failed with an unknown fate; it would come next.
    maybe: Option<Bytes>,
    /// How many frames are promised to survive power loss.
    flushed: usize,
    /// The term in which the last of those was written.
    term: u64,
    floor: u64,
    stamp: u64,
}

impl Life {
    fn new(seed: u64) -> Self {
        Self {
            fs: FaultyFs::new(seed),
            taken: None,
            frames: Vec::new(),
            maybe: None,
            flushed: 0,
            term: 0,
            floor: 1,
            stamp: 0,
        }
    }

    fn log(&self) -> FileLog {
        let options = FileLogOptions { first_file_bytes: 4 * BLOCK, file_bytes_max: 16 * BLOCK };
        FileLog::new(Arc::new(self.fs.clone()), "/log".into(), marks(), options)
    }

    /// Opens, checks what is there against what is owed, and takes it as the truth.
    fn open(&mut self, promised: usize) {
        drop(self.taken.take());
        let taken = self.log().take_over(floor(self.floor)).expect("nothing is damaged");
        let mut taken = settled(taken).expect("settled");
        self.frames.extend(self.maybe.take());
        let mut next = self.floor;
        let done = taken.reader.replay(Lsn(self.floor), &mut |lsn, frame| {
            assert_eq!(lsn, Lsn(next), "a hole");
            let owed = self.frames.get(next as usize - 1);
            assert!(owed == Some(&frame), "frame {lsn} is not the one that was appended");
            next += 1;
            Ok(())
        });
        done.expect("replay");
        assert_eq!(taken.next, Lsn(next));
        assert!(next > promised as u64, "{promised} were promised, the next is {next}");
        assert!(taken.term > self.term, "term {} after {}", taken.term, self.term);
        self.frames.truncate(next as usize - 1);
        self.flushed = self.frames.len();
        self.taken = Some(taken);
    }

    fn crash(&mut self, kind: CrashKind) {
        self.fs.crash(kind);
        let promised = match kind {
            CrashKind::Power => self.flushed,
            CrashKind::Process => self.frames.len(),
        };
        self.open(promised);
    }

    fn writer(&mut self) -> &mut dyn LogWriter {
        &mut *self.taken.as_mut().expect("open between steps").writer
    }

    /// A frame unlike all others, with a repeated end, so that blocks of different frames
    /// can be the same, as with real messages.
    fn append(&mut self, bytes: usize) -> Result<(), AppendError> {
        self.stamp += 1;
        let mut frame = vec![7; bytes.max(8)];
        frame[..8].copy_from_slice(&self.stamp.to_le_bytes());
        let frame = Bytes::from(frame);
        let at = Lsn(self.frames.len() as u64 + 1);
        let done = self.writer().append(at, &frame);
        match &done {
            Ok(()) => self.frames.push(frame),
            Err(AppendError::Unknown(_)) => self.maybe = Some(frame),
            Err(_) => {}
        }
        done
    }

    fn flush(&mut self) -> Result<(), AppendError> {
        let more = self.frames.len() > self.flushed;
        self.writer().flush()?;
        if more {
            self.term = self.taken.as_ref().expect("open between steps").term;
        }
        self.flushed = self.frames.len();
        Ok(())
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Append(bytes) => self.append(bytes).expect("append"),
            Step::Flush => self.flush().expect("flush"),
            Step::Prepare => {
                let preparer = self.writer().preparer().expect("preparer");
                preparer.prepare(0).expect("prepare");
            }
            Step::Trim(quarters) => {
                let flushed = self.flushed as u64 + 1;
                self.floor += flushed.saturating_sub(self.floor) * quarters / 4;
                let below = Lsn(self.floor);
                self.writer().trim(below).expect("trim");
            }
            Step::Crash(kind) => self.crash(kind),
            Step::CrashWithin(nth, kind) => {
                self.fs.crash_after_writes(nth);
                while self.append(9000).is_ok() {}
                self.crash(kind);
            }
            Step::CrashOpening(nth, kind) => {
                // A flush by this one is not reported, so what is owed stays as it was.
                self.fs.crash(CrashKind::Power);
                self.fs.crash_after_writes(nth);
                drop(self.log().take_over(floor(self.floor)).and_then(settled));
                self.fs.crash(kind);
                self.open(self.flushed);
            }
            Step::FailFlush => {
                let promised = self.flushed;
                let _ = self.append(100);
                self.fs.fail_sync(1, ErrorKind::Other, Times::Once);
                // A sync of the folder may take the fault instead.
                if self.flush().is_err() {
                    self.open(promised);
                } else {
                    self.fs.disarm();
                }
            }
            Step::Fill => {
                let used = self.fs.used_bytes();
                self.fs.set_capacity(Some(used + BLOCK));
                let full = (0..20).any(|_| matches!(self.append(60_000), Err(AppendError::Full)));
                assert!(full, "twenty large frames do not fit");
                self.fs.set_capacity(None);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::default())]

    /// After any life: all flushed frames that were not trimmed are there with the right
    /// bytes, and what comes behind them is a prefix of what was appended.
    #[test]
    fn flushed_frames_survive_every_life_and_the_rest_is_a_prefix(
        seed: u64,
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let mut life = Life::new(seed);
        life.open(0);
        for step in &steps {
            life.take(step);
        }
        life.crash(CrashKind::Power);
        life.crash(CrashKind::Power);
        life.crash(CrashKind::Process);
    }
}
