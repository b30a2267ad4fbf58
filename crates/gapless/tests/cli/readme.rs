//! The README's first minute, run as it is written there, so that it cannot rot.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::{Running, Server, gapless, run};

const README: &str = include_str!("../../../../README.md");

/// The fenced block of this language that comes first after the heading.
fn block(heading: &str, language: &str) -> String {
    let section = README.split(heading).nth(1).expect("the README has this section");
    let section = section.split("\n## ").next().unwrap_or(section);
    let fence = format!("```{language}\n");
    let start = section.find(&fence).expect("the section has this block") + fence.len();
    let end = section[start..].find("```").expect("the block ends");
    section[start..start + end].to_owned()
}

/// Ends everything that the script left behind, by the id of its group.
struct Group(Running, u32);

impl Drop for Group {
    fn drop(&mut self) {
        let group = format!("-{}", self.1);
        let _ = Command::new("kill").args(["-9", "--", &group]).stderr(Stdio::null()).status();
    }
}

#[test]
fn the_first_minute_works_as_it_is_written() {
    use std::os::unix::process::CommandExt;
    let folder = tempfile::Builder::new().prefix("gl").tempdir().unwrap();
    let script = block("## The first minute", "sh");
    for step in ["gapless serve", "gapless pub", "gapless sub", "kill -9", "--save"] {
        assert!(script.contains(step), "the first minute has no {step}");
    }
    let program = Path::new(env!("CARGO_BIN_EXE_gapless"));
    let path = std::env::var("PATH").unwrap();
    let path = format!("{}:{path}", program.parent().unwrap().display());
    let mut shell = Command::new("bash");
    for (name, _) in gapless().get_envs() {
        shell.env_remove(name);
    }
    shell.args(["-e", "-u", "-c", &script]).current_dir(folder.path()).env("PATH", path);
    // No port that another process could take: the socket in the data folder.
    shell.env("GAPLESS_NATIVE_LISTEN", "").env("GAPLESS_HTTP_LISTEN", "");
    shell.env("GAPLESS_SERVER", "unix:gapless-data/gapless.sock").env("GAPLESS_WAIT", "60s");
    shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let running = Running::start(&mut shell);
    let id = running.id();
    let mut group = Group(running, id);
    let printed = group.0.out.rest();
    assert_eq!(group.0.wait(), Some(0), "{printed:#?} {:#?}", group.0.err.rest());
    let mut lines = printed.iter();
    for wanted in block("## The first minute", "text").lines() {
        assert!(lines.any(|line| line == wanted), "{wanted:?} is not printed: {printed:#?}");
    }
}

#[test]
fn c2_the_lines_for_curl_work_as_they_are_written() {
    let server = Server::start();
    let script = block("## With curl", "sh").replace("localhost:4280", server.http());
    assert!(script.matches("curl ").count() >= 7 && !script.contains("4280"), "{script}");
    let mut shell = Command::new("bash");
    // All but the last end by themselves, and well; that one is a stream, and ends by its time.
    shell.args([
        "-u",
        "-c",
        &format!(
            "set -o pipefail; curl() {{ command curl -sSf \"$@\" || echo \"exit $?\"; }}; {script}"
        ),
    ]);
    shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let ran = run(&mut shell, None);
    let text = ran.out.join("\n");
    let exits: Vec<&String> = ran.out.iter().filter(|line| line.starts_with("exit ")).collect();
    assert_eq!(exits, ["exit 28"], "{text}");
    for wanted in [
        r#""name":"orders""#,
        r#""durability":"flushed""#,
        r#""text":"first""#,
        r#""json":{"n":2}"#,
        r#""text":"third""#,
        r#""accepted":2"#,
        r#""more":true"#,
        "id: ",
        "data: {\"topic\":\"orders\",\"seq\":4",
    ] {
        assert!(text.contains(wanted), "{wanted} is not in {text}");
    }
}
