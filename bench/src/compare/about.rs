//! What a run was made on and with: the machine, the versions, the sizes.

use std::fs;
use std::path::Path;
use std::process::Command;

use gapless_bench::process::load_average;

use super::plan::Plan;
use super::server::Programs;

/// Names and values, for people.
pub(super) fn about(programs: &Programs, plan: &Plan) -> Vec<(String, String)> {
    let mut about: Vec<(&str, Option<String>)> = vec![
        ("date", output("date", &["-u", "+%Y-%m-%d %H:%M UTC"])),
        ("cpu", first_after("/proc/cpuinfo", "model name")),
        ("cores", std::thread::available_parallelism().ok().map(|cores| cores.to_string())),
        ("memory", first_after("/proc/meminfo", "MemTotal")),
        ("system", output("uname", &["-sr"])),
        ("load before", load_average().ok().map(|load| format!("{load:.2}"))),
        ("gapless", version(Some(&programs.gapless), "--version")),
        ("nats-server", version(programs.nats.as_deref(), "--version")),
        ("redis-server", version(programs.redis.as_deref(), "--version")),
    ];
    let seconds = plan.time.as_secs_f64();
    let rounds = plan.rounds;
    about.push(("run", Some(format!("{}: {rounds} rounds of {seconds} s", plan.name))));
    let named = about.into_iter();
    named.map(|(name, value)| (name.to_owned(), value.unwrap_or("–".to_owned()))).collect()
}

fn version(program: Option<&Path>, flag: &str) -> Option<String> {
    let text = output(program?.to_str()?, &[flag])?;
    // Redis tells hashes and allocators behind its version; they are not needed here.
    let words = text.split_ascii_whitespace();
    let version = words.map(|word| word.trim_start_matches("v=").trim_start_matches('v'));
    let mut numbers = version.filter(|word| word.starts_with(|first: char| first.is_ascii_digit()));
    numbers.next().map(str::to_owned)
}

fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}

fn first_after(path: &str, field: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    Some(line.trim_start_matches([' ', '\t', ':']).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_a_dash_and_not_an_error() {
        let programs = Programs { gapless: "/nowhere".into(), ..Programs::default() };
        let about = about(&programs, &Plan::tiny());
        let value = |name: &str| {
            about.iter().find(|(other, _)| other == name).map(|(_, value)| value.clone()).unwrap()
        };
        assert_eq!(value("gapless"), "–");
        assert_eq!(value("nats-server"), "–");
        assert!(value("run").starts_with("tiny"));
        assert_ne!(value("cores"), "–");
    }
}
