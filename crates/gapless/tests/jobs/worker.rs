//! What a worker does with a program: what it gets, what it may, and that nothing of it stays.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use crate::support::json;

use super::*;

/// A leader and a worker with these options.
pub(crate) fn started(place: &Place, words: &[&str]) -> (Running, Running, String) {
    let (leader, address) = place.leader("0");
    let worker = place.worker_with(&address, words);
    (leader, worker, address)
}

fn submitted(place: &Place, address: &str, words: &[&str]) -> Value {
    json(&place.submit(address, &[words, &["--json"]].concat()).output())
}

/// Whether a process lives. A zombie that its parent has not looked at yet is dead.
pub(crate) fn lives(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

/// A job that forks twice, leaves its session, ignores signals and has an empty environment in
/// its grandchild, which writes its number to the file `pids`, as does the job itself.
pub(crate) fn stubborn(place: &Place) -> PathBuf {
    let pids = place.path("pids");
    let script = format!(
        "trap '' TERM INT HUP\n\
         (env -i setsid sh -c 'trap \"\" TERM HUP; echo $$ >> {pids}; while :; do sleep 0.1; done' \
         > /dev/null 2>&1 &)\n\
         echo $$ >> {pids}; while :; do sleep 0.1; done",
        pids = pids.display()
    );
    place.exec("stubborn", &script);
    pids
}

#[test]
fn e6_a_job_gets_its_input_and_environment_and_nothing_of_its_worker_s() {
    let place = Place::new();
    place.exec("show", "cat; env | sort; cat sub/deep.txt; ls");
    let mut archive = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    archive.start_file("sub/deep.txt", zip::write::SimpleFileOptions::default()).expect("a file");
    std::io::Write::write_all(&mut archive, b"deep\n").expect("its content");
    let archive = archive.finish().expect("an archive").into_inner();
    std::fs::write(place.path("in.zip"), archive).expect("written");
    std::fs::write(place.path("in.txt"), "from stdin\n").expect("written");
    let (_leader, address) = place.leader("0");
    let mut command = place.command(&["worker", "--leader", &address, "--json"]);
    command.env("SECRET_OF_WORKER", "x").stderr(Stdio::inherit());
    let mut worker = Running(command.spawn().expect("the program starts"));
    worker.first_line();
    let words = ["show", "--stdin", "in.txt", "--archive", "in.zip", "--env", "COLOUR=blue = sky"];
    let result = submitted(&place, &address, &words);
    let told = result["Stdout"].as_str().expect("a text");
    assert!(told.starts_with("from stdin\n"), "{told}");
    for expected in ["COLOUR=blue = sky\n", "LANG=C.UTF-8\n", "GAPLESS_CLIENT_ID=cli\n", "deep\n"] {
        assert!(told.contains(expected), "{expected} in {told}");
    }
    assert!(!told.contains("SECRET"), "{told}");
    // A file that climbs out of the folder fails the job; it is not tried again.
    let mut hostile = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    hostile.start_file("../evil", zip::write::SimpleFileOptions::default()).expect("a file");
    let hostile = hostile.finish().expect("an archive").into_inner();
    std::fs::write(place.path("evil.zip"), hostile).expect("written");
    let refused = submitted(&place, &address, &["show", "--archive", "evil.zip"]);
    assert_eq!((&refused["Status"], &refused["Attempt"]), (&"FAILED".into(), &1.into()));
    let wrong = place.submit(&address, &["show", "--env", "GAPLESS_X=1"]).output();
    assert_eq!(wrong.status.code(), Some(5), "{}", text(&wrong.stderr));
}

#[test]
fn e6_a_job_that_forks_twice_and_hides_is_gone_past_its_time_and_when_its_worker_is_killed() {
    let place = Place::new();
    let pids = stubborn(&place);
    let (_leader, mut worker, address) = started(&place, &["--allow", "."]);
    let pids_of = || std::fs::read_to_string(&pids).unwrap_or_default();
    let id = "01234567-89ab-cdef-0123-456789abcdef";
    let first = place.submit(&address, &["stubborn", "--json", "--run-max", "2s", "--id", id]);
    wait_until("both of it run", || lines(&pids) == 2);
    let result = json(&first.output());
    assert_eq!(result["Status"], "FAILED");
    assert!(result["Reason"].as_str().is_some_and(|why| why.contains("longer")), "{result}");
    assert!(!pids_of().lines().any(lives), "nothing of it lives past its time");
    std::fs::remove_file(&pids).expect("it is there");
    let second = place.submit(&address, &["stubborn", "--json"]);
    wait_until("both of it run again", || lines(&pids) == 2);
    assert!(pids_of().lines().all(lives));
    worker.kill();
    wait_until("nothing of it lives without its worker", || !pids_of().lines().any(lives));
    drop(second);
}

#[test]
fn e10_a_job_that_forks_twice_and_hides_is_gone_when_it_is_cancelled() {
    let place = Place::new();
    let pids = stubborn(&place);
    let (_leader, _worker, address) = started(&place, &["--allow", "."]);
    let pids_of = || std::fs::read_to_string(&pids).unwrap_or_default();
    let id = "01234567-89ab-cdef-0123-456789abcdef";
    let job = place.submit(&address, &["stubborn", "--json", "--id", id]);
    wait_until("both of it run", || lines(&pids) == 2);
    assert!(pids_of().lines().all(lives));
    // By another process than the one that submitted it.
    let cancelled = place.run(&["job", "cancel", id, "--leader", &address]);
    assert_eq!(cancelled.status.code(), Some(0), "{}", text(&cancelled.stderr));
    let result = json(&job.output());
    assert_eq!((&result["Status"], &result["Attempt"]), (&"CANCELLED".into(), &1.into()));
    assert!(!pids_of().lines().any(lives), "nothing of it lives when its end is known");
    // Its worker takes the next one.
    place.exec("well", "echo well");
    assert_eq!(submitted(&place, &address, &["well"])["Stdout"], "well\n");
}

#[test]
fn e10_a_job_reads_and_writes_only_what_it_may_and_says_how_it_was_isolated() {
    let place = Place::new();
    let outside = place.path("outside");
    std::fs::create_dir(&outside).expect("a folder");
    std::fs::write(outside.join("secret"), "secret\n").expect("written");
    let script = format!(
        "echo own > own.txt && echo wrote own\n\
         echo x 2> /dev/null > {out}/new && echo wrote outside\n\
         cat {out}/secret 2> /dev/null && echo read outside\n\
         unshare -U true 2> /dev/null && echo new namespace\n\
         exit 0",
        out = outside.display()
    );
    place.exec("explore", &script);
    let (_leader, worker, address) = started(&place, &[]);
    let result = submitted(&place, &address, &["explore"]);
    let told = result["Stdout"].as_str().expect("a text");
    let reached = result["Isolation"].as_str().expect("a level").to_owned();
    assert!(told.contains("wrote own\n"), "{told}");
    // A machine without Landlock or seccomp says so; this one must not claim what it has not.
    assert_eq!(told.contains("outside"), reached == "process", "{reached}: {told}");
    assert_eq!(outside.join("new").exists(), reached == "process", "{reached}");
    if reached == "kernel" {
        assert!(!told.contains("new namespace"), "{told}");
    }
    // No user was given to run jobs as, so that cannot be had here; the job is not run.
    let more = ["explore", "--isolation", "user", "--attempts", "1"];
    let demanding = submitted(&place, &address, &more);
    assert_eq!(demanding["Status"], "DEAD", "{demanding}");
    assert_eq!(demanding["Stdout"], "");
    drop(worker);
    let open = place.worker_with(&address, &["--isolation", "process"]);
    let result = submitted(&place, &address, &["explore"]);
    assert_eq!(result["Isolation"], "process");
    assert!(result["Stdout"].as_str().is_some_and(|told| told.contains("wrote outside")));
    drop(open);
}

#[test]
fn e10_a_worker_of_root_runs_jobs_as_another_user() {
    let place = Place::new();
    place.exec("who", "id -u; id -G; echo mine > made.txt; stat -c %u made.txt");
    let (_leader, address) = place.leader("0");
    let root = rustix::process::getuid().is_root();
    // Others' jobs must be able to get to their folder and to the executables.
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(place.path("."), mode).expect("our folder");
    let _worker = place.worker_with(&address, &["--job-user", "60123"]);
    let result = submitted(&place, &address, &["who", "--attempts", "1", "--retry-wait", "1ms"]);
    if root && result["Isolation"] == "user" {
        assert_eq!(result["Stdout"], "60123\n60123\n60123\n", "{result}");
    } else if !root {
        assert_eq!(result["Status"], "DEAD", "a user cannot become another: {result}");
    }
}

#[test]
fn e6_memory_processor_time_and_run_time_have_limits() {
    let place = Place::new();
    // Both would take all there is, if they were let.
    place.exec("eat", "x=a; while :; do x=$x$x$x$x; done");
    place.exec("spin", "while :; do :; done");
    let (_leader, _worker, address) = started(&place, &["--memory", "200MiB", "--run-max", "30s"]);
    let eaten = submitted(&place, &address, &["eat", "--memory", "1GiB"]);
    assert_eq!(eaten["Status"], "FAILED", "{eaten}");
    assert!(eaten["Reason"].as_str().is_none_or(|why| !why.contains("longer")), "{eaten}");
    let spun = submitted(&place, &address, &["spin", "--cpu", "1s"]);
    assert_eq!((&spun["Status"], &spun["Signal"]), (&"FAILED".into(), &9.into()), "{spun}");
    let slow = submitted(&place, &address, &["spin", "--run-max", "300ms"]);
    assert!(slow["Reason"].as_str().is_some_and(|why| why.contains("300 ms")), "{slow}");
}

#[test]
fn what_a_job_writes_is_shown_while_it_runs_and_not_twice() {
    let place = Place::new();
    let gate = place.path("gate");
    let script = "echo first; echo early >&2; while [ ! -e gate ]; do sleep 0.05; done; echo last";
    place.exec("talk", &script.replace("gate", &gate.display().to_string()));
    let (_leader, _worker, address) = started(&place, &["--allow", "."]);
    let told = place.path("told");
    let mut command = place.command(&["job", "submit", "--leader", &address, "talk", "--follow"]);
    command.stdout(std::fs::File::create(&told).expect("a file"));
    let job = Running(command.spawn().expect("the program starts"));
    wait_until("its first line is shown before it ends", || lines(&told) == 1);
    std::fs::write(&gate, "").expect("written");
    let done = job.output();
    assert_eq!(std::fs::read_to_string(&told).expect("it is there"), "first\nlast\n");
    assert_eq!(text(&done.stderr), "early\n");
}

#[test]
fn jobs_wait_for_others_are_unique_and_tried_again_by_exit_code() {
    let place = Place::new();
    let (ran, gate) = place.gated("slow");
    place.exec("flaky", "echo x >> $1; [ $(wc -l < $1) -ge 2 ] || exit 75");
    let (_leader, _worker, address) = started(&place, &["--allow", "."]);
    let id = "01234567-89ab-cdef-0123-456789abcdef";
    let first = place.submit(&address, &["slow", "--id", id, "--unique", "u", "--json"]);
    wait_until("it runs", || lines(&ran) == 1);
    let second = place.submit(&address, &["slow", "--unique", "u"]).output();
    assert_eq!(second.status.code(), Some(5), "{}", text(&second.stderr));
    let after = place.submit(&address, &["slow", "--after", id, "--json"]);
    std::fs::write(&gate, "").expect("written");
    assert_eq!(json(&first.output())["Status"], "OK");
    assert_eq!(json(&after.output())["Status"], "OK");
    assert_eq!(lines(&ran), 2);
    let count = place.path("count").display().to_string();
    let again = ["flaky", &count, "--retry-code", "75", "--retry-wait", "1ms"];
    let result = submitted(&place, &address, &again);
    assert_eq!((&result["Status"], &result["Attempt"]), (&"OK".into(), &2.into()), "{result}");
    let schedule = place.submit(&address, &["slow", "--cron", "* * * * * *", "--json"]).output();
    assert!(json(&schedule)["JobId"].is_string());
    wait_until("the schedule has it run", || lines(&ran) >= 4);
    let wrong = place.submit(&address, &["slow", "--cron", "61 * * * *"]).output();
    assert_eq!(wrong.status.code(), Some(5), "{}", text(&wrong.stderr));
}

#[test]
fn the_rendered_picture_is_whole_though_a_worker_is_killed() {
    let place = Place::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let program = Path::new(env!("CARGO_BIN_EXE_gapless"));
    let path = std::env::var("PATH").expect("there is a PATH");
    let mut example = Command::new(root.join("examples/render/run"));
    let folder = program.parent().expect("a folder").display();
    example.arg("picture.pgm").current_dir(place.0.path()).env("PATH", format!("{folder}:{path}"));
    example.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let done = Running::reading(example.spawn().expect("it starts"));
    let told = text(&done.stdout) + &text(&done.stderr);
    assert!(done.status.success() && told.contains("killed a worker with"), "{told}");
    assert!(!told.contains("rendered again by others: 0"), "{told}");
    let picture = std::fs::read_to_string(place.path("picture.pgm")).expect("a picture");
    let numbers: Vec<u32> =
        picture.split_whitespace().skip(1).map(|word| word.parse().expect("a number")).collect();
    assert_eq!(numbers[..3], [256, 256, 255]);
    let pixels = &numbers[3..];
    assert_eq!(pixels.len(), 256 * 256);
    // The set itself is dark, what is far from it is light.
    assert_eq!(pixels[128 * 256 + 160], 0, "inside");
    assert!(pixels[0] > 200, "outside");
}

/// A folder of cgroup v2 for these tests, which is removed in the end; `None` where none can be made.
struct Groups(PathBuf);

impl Groups {
    fn create() -> Option<Self> {
        let mounts = std::fs::read_to_string("/proc/mounts").expect("Linux");
        let mut words = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let mount = words.find(|words| words.get(2) == Some(&"cgroup2"))?[1].to_owned();
        let folder = Path::new(&mount).join(format!("gapless-test-{}", std::process::id()));
        std::fs::create_dir(&folder).ok().map(|()| Self(folder))
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[test]
fn a_job_has_a_group_of_its_own_which_is_gone_with_all_that_was_in_it() {
    let place = Place::new();
    let pids = stubborn(&place);
    place.exec("where", "grep ^0:: /proc/self/cgroup; (setsid sleep 60 > /dev/null 2>&1 &)");
    // Where no folder of groups can be made, the result says so and the job runs.
    let groups = Groups::create();
    let nowhere = PathBuf::from("/proc/nowhere");
    let folder = groups.as_ref().map_or(&nowhere, |groups| &groups.0);
    let (_leader, address) = place.leader("0");
    let given = folder.to_str().expect("a text");
    let words = ["--allow", ".", "--cgroup", given, "--memory", "1GiB", "--cpus", "1.5"];
    let _worker = place.worker_with(&address, &words);
    let result = submitted(&place, &address, &["where"]);
    assert_eq!(result["Status"], "OK", "{result}");
    let (level, told) = (result["Cgroup"].as_str(), result["Stdout"].as_str());
    let (level, told) = (level.expect("a level"), told.expect("a text"));
    if groups.is_none() {
        assert!(level.starts_with("none: /proc/nowhere"), "{level}");
        return;
    }
    assert!(level.ends_with("kill"), "{level}");
    let id = result["JobId"].as_str().expect("an id");
    assert!(told.contains(&format!("/{id}-1.")), "{told}");
    let is_empty = || {
        let entries = std::fs::read_dir(folder).expect("a folder").flatten();
        !entries.map(|entry| entry.path()).any(|path| path.is_dir())
    };
    assert!(is_empty(), "its group is gone");
    // Processes that left their session and ignore signals go with the group.
    let id = text(&place.submit(&address, &["stubborn", "--detach"]).output().stdout);
    wait_until("both run", || lines(&pids) == 2);
    let cancelled = place.run(&["job", "cancel", id.trim(), "--leader", &address]);
    assert!(cancelled.status.success(), "{}", text(&cancelled.stderr));
    wait_until("its group is gone", is_empty);
    let pids = std::fs::read_to_string(&pids).expect("they wrote them");
    assert!(!pids.lines().any(lives), "{pids}");
}
