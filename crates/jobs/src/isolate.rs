//! Keeping a job from the rest of the machine.
//!
//! Landlock and seccomp bind a thread and all that it starts. So a job is started by a thread that
//! binds itself first: the worker stays free, no code runs between fork and exec, and a program cannot
//! run before it is bound. In a runner that thread stays for the next jobs ([`Bound`]). A worker that
//! runs programs itself, several at a time, has one for each; the filter of calls is the same for all
//! of them: one thread has it, and all others are started by that one.
//! Limits of memory and processor time are set from outside, right after the start.
//!
//! What the machine does not offer is left out; the level that was reached is in the result, and
//! a job that demands more is not started.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError, mpsc};

use rustix::process::{Pid, Resource, Rlimit};
use serde::{Deserialize, Serialize};
use tokio::process::{Child, Command};
use tokio::runtime::Handle;

use crate::wire::Isolation;

/// How jobs are kept from the rest of the machine.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Sandbox {
    /// The most isolation that is used; as much as there is if it is not given.
    pub most: Option<Isolation>,
    /// Folders that jobs may read, beside their own and those of the system.
    pub read: Vec<PathBuf>,
    /// Folders that jobs may read and write, beside their own.
    pub write: Vec<PathBuf>,
    /// Number of the user and group that jobs run as; only a worker of root can do that.
    pub user: Option<u32>,
    /// A folder of cgroup v2 in which each job gets a group of its own.
    pub cgroup: Option<PathBuf>,
    /// How many processors the processes of a job may use in their group, on average; 0 for any.
    pub cpus: f64,
}

/// Limits of each process of a job; 0 for none.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ProcessLimits {
    pub(crate) memory_bytes: u64,
    pub(crate) cpu_seconds: u64,
    pub(crate) file_bytes: u64,
}

impl Sandbox {
    fn wants(&self, level: Isolation) -> bool {
        self.most.is_none_or(|most| most >= level)
    }
}

/// The user that jobs run as, if they are to have one of their own.
pub(crate) fn user_of(sandbox: &Sandbox) -> Option<u32> {
    sandbox.user.filter(|_| sandbox.wants(Isolation::User))
}

/// Starts a program that is bound as far as the machine allows, in its own folder. If that is
/// less than `least`, it is not started.
pub(crate) fn spawn(
    command: Command,
    (folder, exec_dir): (&Path, &Path),
    sandbox: &Sandbox,
    least: Option<Isolation>,
) -> io::Result<(Child, Isolation)> {
    let runtime = Handle::current();
    let (folder, exec_dir, sandbox) = (folder.to_owned(), exec_dir.to_owned(), sandbox.clone());
    let filtered = sandbox.wants(Isolation::Kernel).then(Starter::filtered).flatten();
    let is_filtered = filtered.is_some();
    let start = move || {
        let _entered = runtime.enter();
        let level = level_of(confine(&folder, &exec_dir, &sandbox)?, is_filtered);
        start_bound(command, level, user_of(&sandbox), least)
    };
    match filtered {
        Some(starter) => starter.run(|| on_new_thread(start))??,
        None => on_new_thread(start)?,
    }
}

fn level_of(files: Isolation, is_filtered: bool) -> Isolation {
    if files == Isolation::Files && is_filtered { Isolation::Kernel } else { files }
}

/// Starts a program on a thread that is bound so far.
fn start_bound(
    mut command: Command,
    mut level: Isolation,
    user: Option<u32>,
    least: Option<Isolation>,
) -> io::Result<(Child, Isolation)> {
    if let Some(user) = user.filter(|_| level == Isolation::Kernel) {
        command.uid(user).gid(user);
        level = Isolation::User;
    }
    if least.is_some_and(|least| level < least) {
        return Err(io::Error::other(format!("it demands more isolation than {level:?}")));
    }
    Ok((command.spawn()?, level))
}

/// A thread that is bound to one folder for good, and starts programs there.
pub(crate) struct Bound {
    thread: Starter,
    level: Isolation,
}

impl Bound {
    /// Binds a thread as far as the machine allows.
    pub(crate) fn start((folder, exec_dir): (&Path, &Path), sandbox: &Sandbox) -> io::Result<Self> {
        let (folder, exec_dir, sandbox) = (folder.to_owned(), exec_dir.to_owned(), sandbox.clone());
        let bind = move || {
            let is_filtered = sandbox.wants(Isolation::Kernel) && filter_calls();
            Ok::<_, io::Error>(level_of(confine(&folder, &exec_dir, &sandbox)?, is_filtered))
        };
        let (thread, level) = Starter::start(bind)?;
        Ok(Self { thread, level: level? })
    }

    /// Starts a program there; see [`spawn`].
    pub(crate) fn spawn(
        &self,
        command: Command,
        user: Option<u32>,
        least: Option<Isolation>,
    ) -> io::Result<(Child, Isolation)> {
        let (runtime, level) = (Handle::current(), self.level);
        self.thread.run(move || {
            let _entered = runtime.enter();
            start_bound(command, level, user, least)
        })?
    }
}

fn on_new_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    let thread = std::thread::Builder::new().spawn(work)?;
    thread.join().map_err(|_| io::Error::other("the starting thread panicked"))
}

type Work = Box<dyn FnOnce() + Send>;

/// A thread that was bound when it began, and with it all that it starts.
struct Starter(Mutex<mpsc::Sender<Work>>);

impl Starter {
    /// The one of this process whose calls are filtered, if the machine does that.
    fn filtered() -> Option<&'static Self> {
        static STARTER: OnceLock<Option<Starter>> = OnceLock::new();
        let start = || Self::start(filter_calls).ok().and_then(|(it, is)| is.then_some(it));
        STARTER.get_or_init(start).as_ref()
    }

    /// Starts a thread; the second is what binding it returned. It ends when this is dropped.
    fn start<T: Send + 'static>(
        bind: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<(Self, T)> {
        let (to, work) = mpsc::channel::<Work>();
        let (say, bound) = mpsc::channel();
        let serve = move || {
            let _ = say.send(bind());
            work.into_iter().for_each(|work| work());
        };
        std::thread::Builder::new().name("starter".to_owned()).spawn(serve)?;
        let bound = bound.recv().map_err(|_| gone())?;
        Ok((Self(Mutex::new(to)), bound))
    }

    /// Runs this on it, and waits for that.
    fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
        let (say, done) = mpsc::channel();
        let work = Box::new(move || drop(say.send(work())));
        self.0.lock().unwrap_or_else(PoisonError::into_inner).send(work).map_err(|_| gone())?;
        done.recv().map_err(|_| gone())
    }
}

fn gone() -> io::Error {
    io::Error::other("the starting thread has ended")
}

/// Sets the limits of a process that was just started, and of all that it starts.
pub(crate) fn limit(process: Pid, limits: ProcessLimits) {
    let set = |resource, most: u64| {
        let rlimit = Rlimit { current: Some(most), maximum: Some(most) };
        // It may have ended already.
        let _ = rustix::process::prlimit(Some(process), resource, rlimit);
    };
    set(Resource::Core, 0);
    for (resource, most) in [
        (Resource::As, limits.memory_bytes),
        (Resource::Cpu, limits.cpu_seconds),
        (Resource::Fsize, limits.file_bytes),
    ] {
        if most > 0 {
            set(resource, most);
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn confine(_: &Path, _: &Path, _: &Sandbox) -> io::Result<Isolation> {
    Ok(Isolation::Process)
}

#[cfg(not(target_os = "linux"))]
fn filter_calls() -> bool {
    false
}

#[cfg(target_os = "linux")]
use linux::{confine, filter_calls};

#[cfg(target_os = "linux")]
mod linux {
    use std::collections::BTreeMap;

    use landlock::{
        ABI, Access, AccessFs, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope,
        path_beneath_rules,
    };
    use seccompiler::{
        BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
        SeccompRule,
    };

    use super::{Isolation, Path, Sandbox, io};

    /// What every program may read: other programs, libraries, and how the system is set up.
    const SYSTEM: &[&str] = &[
        "/usr",
        "/bin",
        "/sbin",
        "/lib",
        "/lib32",
        "/lib64",
        "/opt",
        "/etc",
        "/nix/store",
        "/proc",
        "/sys/devices/system/cpu",
        "/dev/urandom",
        "/dev/random",
    ];
    /// What every program may write too.
    const DEVICES: &[&str] = &["/dev/null", "/dev/zero", "/dev/full", "/dev/tty"];

    /// Binds this thread and what it starts to some files.
    pub(super) fn confine(
        folder: &Path,
        exec_dir: &Path,
        sandbox: &Sandbox,
    ) -> io::Result<Isolation> {
        let bound = sandbox.wants(Isolation::Files) && files(folder, exec_dir, sandbox)?;
        Ok(if bound { Isolation::Files } else { Isolation::Process })
    }

    /// Whether files are out of reach from now on.
    fn files(folder: &Path, exec_dir: &Path, sandbox: &Sandbox) -> io::Result<bool> {
        let abi = ABI::V6;
        let (all, read) = (AccessFs::from_all(abi), AccessFs::from_read(abi));
        let system = SYSTEM.iter().map(Path::new);
        let readable = system.chain([exec_dir]).chain(sandbox.read.iter().map(AsRef::as_ref));
        let devices = DEVICES.iter().map(Path::new);
        let writable = devices.chain([folder]).chain(sandbox.write.iter().map(AsRef::as_ref));
        let bind = || {
            Ruleset::default()
                .handle_access(all)?
                .scope(Scope::AbstractUnixSocket)?
                .scope(Scope::Signal)?
                .create()?
                .add_rules(path_beneath_rules(readable, read))?
                .add_rules(path_beneath_rules(writable, all))?
                .restrict_self()
        };
        let bound = bind().map_err(io::Error::other)?;
        Ok(bound.ruleset != RulesetStatus::NotEnforced)
    }

    /// Whether calls of this thread, and of all it starts, are filtered from now on.
    pub(super) fn filter_calls() -> bool {
        let applied = |filter: &BpfProgram| seccompiler::apply_filter(filter).is_ok();
        filters().is_some_and(|filters| filters.iter().all(applied))
    }

    /// The calls that are answered with "not permitted": those of administrators, those that
    /// look into other processes, and those that make new namespaces.
    fn filters() -> Option<[BpfProgram; 2]> {
        let mut refused: BTreeMap<i64, Vec<SeccompRule>> = [
            libc::SYS_acct,
            libc::SYS_add_key,
            libc::SYS_bpf,
            libc::SYS_chroot,
            libc::SYS_clock_adjtime,
            libc::SYS_clock_settime,
            libc::SYS_delete_module,
            libc::SYS_fanotify_init,
            libc::SYS_finit_module,
            libc::SYS_fsmount,
            libc::SYS_fsopen,
            libc::SYS_init_module,
            libc::SYS_io_uring_setup,
            libc::SYS_kexec_load,
            libc::SYS_keyctl,
            libc::SYS_mount,
            libc::SYS_move_mount,
            libc::SYS_open_by_handle_at,
            libc::SYS_open_tree,
            libc::SYS_perf_event_open,
            libc::SYS_pivot_root,
            libc::SYS_process_vm_readv,
            libc::SYS_process_vm_writev,
            libc::SYS_ptrace,
            libc::SYS_quotactl,
            libc::SYS_reboot,
            libc::SYS_request_key,
            libc::SYS_setdomainname,
            libc::SYS_sethostname,
            libc::SYS_setns,
            libc::SYS_settimeofday,
            libc::SYS_swapoff,
            libc::SYS_swapon,
            libc::SYS_syslog,
            libc::SYS_umount2,
            libc::SYS_unshare,
            libc::SYS_userfaultfd,
        ]
        .into_iter()
        .map(|call| (call, Vec::new()))
        .collect();
        let namespaces = [
            libc::CLONE_NEWNS,
            libc::CLONE_NEWCGROUP,
            libc::CLONE_NEWUTS,
            libc::CLONE_NEWIPC,
            libc::CLONE_NEWUSER,
            libc::CLONE_NEWPID,
            libc::CLONE_NEWNET,
        ];
        let with = |flag: libc::c_int| {
            let flag = u64::from(flag.cast_unsigned());
            let op = SeccompCmpOp::MaskedEq(flag);
            let has = SeccompCondition::new(0, SeccompCmpArgLen::Qword, op, flag).ok()?;
            SeccompRule::new(vec![has]).ok()
        };
        let rules: Option<Vec<SeccompRule>> = namespaces.into_iter().map(with).collect();
        refused.insert(libc::SYS_clone, rules?);
        // Its flags are in memory, where no filter looks: without it programs use the older one.
        let unknown = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
        let compile = |calls, errno: libc::c_int| -> Option<BpfProgram> {
            let arch = std::env::consts::ARCH.try_into().ok()?;
            let answer = SeccompAction::Errno(errno.cast_unsigned());
            SeccompFilter::new(calls, SeccompAction::Allow, answer, arch).ok()?.try_into().ok()
        };
        Some([compile(refused, libc::EPERM)?, compile(unknown, libc::ENOSYS)?])
    }
}
