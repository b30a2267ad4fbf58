//! The lines of `docs/outbox.md` and the examples, run as they are, so that they cannot rot.

#[path = "../../outbox/tests/support/mod.rs"]
mod support;

use std::path::Path;
use std::process::{Command, Stdio};

use support::Postgres;

const GUIDE: &str = include_str!("../../../docs/outbox.md");

/// Every block of shell lines of a section, as one script.
fn script(heading: &str) -> String {
    let section = GUIDE.split(heading).nth(1).expect("the guide has this section");
    let section = section.split("\n## ").next().unwrap_or(section);
    let blocks = section.split("```sh\n").skip(1);
    blocks.map(|block| block.split("```").next().unwrap_or_default()).collect()
}

/// Runs a script in a folder of its own; what it left running ends with it.
fn run(mut command: Command, folder: &Path, dsn: Option<&str>) -> (bool, String) {
    let program = Path::new(env!("CARGO_BIN_EXE_gapless"));
    let path = std::env::var("PATH").expect("there is a PATH");
    let path = format!("{}:{path}", program.parent().expect("a folder").display());
    command.current_dir(folder).env("PATH", path).env("GAPLESS", program);
    command.env("GAPLESS_NATIVE_LISTEN", "").env("GAPLESS_HTTP_LISTEN", "");
    command.env("GAPLESS_WAIT", "60s").stdin(Stdio::null());
    if let Some(dsn) = dsn {
        command.env("DSN", dsn).env("GAPLESS_SERVER", "unix:gapless-data/gapless.sock");
    }
    let done = command.output().expect("bash starts");
    let text = [done.stdout, done.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    (done.status.success(), text.concat())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_five_minutes_of_the_guide_work_as_they_are_written() {
    let server = Postgres::start().await;
    let folder = tempfile::Builder::new().prefix("gl").tempdir().expect("a folder");
    let steps = script("## Five minutes");
    for step in ["outbox install", "gapless.attach", "gapless serve", "gapless sub", "status"] {
        assert!(steps.contains(step), "the guide has no {step}");
    }
    let mut bash = Command::new("bash");
    bash.args(["-e", "-u", "-c", &format!("trap 'kill %1; wait' EXIT\n{steps}")]);
    let (worked, text) = run(bash, folder.path(), Some(&server.dsn()));
    assert!(worked, "{text}");
    assert!(text.contains("\"tea\"") && text.contains("settled up to"), "{text}");
}

/// Runs an example as a newcomer does, and looks at what it shows.
fn example(language: &str) {
    let folder = tempfile::Builder::new().prefix("gl").tempdir().expect("a folder");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut example = Command::new(root.join("examples/outbox/run"));
    example.arg(language).env_remove("DSN").env_remove("GAPLESS_SERVER");
    // Where all tests were built, examples were too; else the script builds it.
    let built = Path::new(env!("CARGO_BIN_EXE_gapless")).with_file_name("examples/shop");
    if built.exists() {
        example.env("SHOP", built);
    }
    let (worked, text) = run(example, folder.path(), None);
    assert!(worked, "{text}");
    for line in ["sold tea", "no milk left", "\"left\": 3", "settled up to"] {
        assert!(text.contains(line), "{line} is not printed: {text}");
    }
    let sold = text.matches("shop.orders").count();
    assert_eq!(sold, 4, "one order for each sale, none for the one rolled back: {text}");
}

#[test]
fn the_python_example_sells_and_shows_what_consumers_see() {
    example("python");
}

#[test]
fn the_rust_example_sells_and_shows_what_consumers_see() {
    example("rust");
}
