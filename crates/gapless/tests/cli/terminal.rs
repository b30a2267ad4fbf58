//! A program in a terminal: what it draws as a screen of cells, and keys for it.
//!
//! The terminal is a pseudo-terminal of the system; `setsid` makes it the controlling one. Nothing
//! sleeps: waiting means reading what is drawn until a condition holds, with a deadline.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Instant;

use rustix::fs::{Mode, OFlags};
use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;

use crate::support::DEADLINE;

/// See the head of the file.
pub(crate) struct Terminal {
    child: Child,
    master: OwnedFd,
    keys: File,
    drawn: Receiver<Vec<u8>>,
    screen: vt100::Parser,
}

impl Terminal {
    /// Starts the program with its words and environment in a terminal of this size.
    pub(crate) fn start(command: &Command, columns: u16, rows: u16) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = rustix::pty::openpt(flags).expect("a pseudo-terminal");
        rustix::pty::grantpt(&master).expect("it is ours");
        rustix::pty::unlockpt(&master).expect("it can be opened");
        let name = rustix::pty::ptsname(&master, Vec::new()).expect("it has a name");
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let slave = rustix::fs::open(name.as_c_str(), flags, Mode::empty()).expect("it opens");
        set_size(&master, columns, rows);
        let end = || Stdio::from(slave.try_clone().expect("another handle"));
        let mut inside = Command::new("setsid");
        inside.arg("--ctty").arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => inside.env(name, value),
                None => inside.env_remove(name),
            };
        }
        inside.env("TERM", "xterm-256color").env_remove("NO_COLOR");
        let child = inside.stdin(end()).stdout(end()).stderr(end()).spawn().expect("it starts");
        let keys = File::from(master.try_clone().expect("another handle"));
        let mut from = keys.try_clone().expect("another handle");
        let (send, drawn) = mpsc::channel();
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            // An error means that the program has ended.
            while let Ok(count @ 1..) = from.read(&mut bytes) {
                if send.send(bytes[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self { child, master, keys, drawn, screen: vt100::Parser::new(rows, columns, 0) }
    }

    pub(crate) fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("the terminal takes keys");
    }

    pub(crate) fn resize(&mut self, columns: u16, rows: u16) {
        self.screen.screen_mut().set_size(rows, columns);
        set_size(&self.master, columns, rows);
    }

    /// The lines of the screen as soon as they are as wanted.
    #[track_caller]
    pub(crate) fn until(&mut self, what: &str, wanted: impl Fn(&[String]) -> bool) -> Vec<String> {
        let until = Instant::now() + DEADLINE;
        loop {
            let lines = self.lines();
            if wanted(&lines) {
                return lines;
            }
            let left = until.saturating_duration_since(Instant::now());
            match self.drawn.recv_timeout(left) {
                Ok(bytes) => self.screen.process(&bytes),
                Err(error) => panic!("the screen never has {what} ({error}): {lines:#?}"),
            }
        }
    }

    /// The same for a text anywhere on it.
    #[track_caller]
    pub(crate) fn until_shown(&mut self, text: &str) -> Vec<String> {
        self.until(text, |lines| lines.join("\n").contains(text))
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        let (_, columns) = self.screen.screen().size();
        let rows = self.screen.screen().rows(0, columns);
        rows.map(|row| row.trim_end().to_owned()).collect()
    }

    /// Whether the program has left the screen as it found it.
    pub(crate) fn is_restored(&self) -> bool {
        let screen = self.screen.screen();
        !screen.alternate_screen() && !screen.hide_cursor()
    }

    /// Its exit code, when it has ended by itself.
    pub(crate) fn wait(&mut self) -> Option<i32> {
        let until = Instant::now() + DEADLINE;
        loop {
            match self.drawn.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(bytes) => self.screen.process(&bytes),
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
                Err(mpsc::RecvTimeoutError::Timeout) => panic!("it does not end"),
            }
        }
        self.child.wait().expect("it is our child").code()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn set_size(master: &OwnedFd, columns: u16, rows: u16) {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    rustix::termios::tcsetwinsize(master, size).expect("it takes a size");
}
