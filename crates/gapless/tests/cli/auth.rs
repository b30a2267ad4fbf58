//! Who may do what, from the command line; and that no secret is printed or stored.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::{Server, gapless, run};

const GUIDE: &str = include_str!("../../../../docs/security.md");

/// Every byte of every file below a folder.
fn contents(folder: &Path, all: &mut Vec<u8>) {
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            contents(&path, all);
        } else if let Ok(bytes) = std::fs::read(&path) {
            all.extend(bytes);
        }
    }
}

fn holds(bytes: &[u8], part: &str) -> bool {
    bytes.windows(part.len()).any(|window| window == part.as_bytes())
}

#[test]
fn f3_the_commands_of_the_guide_work_and_no_secret_is_shown_or_stored() {
    let server = Server::with(&["auth.required=true"]);
    let script = GUIDE.split("<!-- run -->\n```sh\n").nth(1).expect("the guide has commands");
    let script = script.split("```").next().expect("they end");
    assert!(script.matches("gapless ").count() >= 9, "{script}");
    let program = Path::new(env!("CARGO_BIN_EXE_gapless"));
    let path =
        format!("{}:{}", program.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let mut shell = Command::new("bash");
    for (name, _) in gapless().get_envs() {
        shell.env_remove(name);
    }
    let file = server.path("shop.token");
    shell.current_dir(Path::new(&file).parent().unwrap()).env("PATH", path);
    // The server's own user needs no token on the socket.
    shell.env("GAPLESS_SERVER", server.socket()).args(["-e", "-u", "-c", script]);
    shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let ran = run(&mut shell, None).ok();
    let printed = ran.out.join("\n");
    for wanted in
        ["shop may publish on orders.eu: `allow publish,create on orders.>`", "shop", "revoked 1"]
    {
        assert!(printed.contains(wanted), "{wanted} is not in {printed}");
    }
    let token = std::fs::read_to_string(&file).unwrap();
    // Behind `gapless_`, the id and a line.
    let secret = &token.trim()[21..];
    assert!(secret.len() == 43 && !printed.contains(secret), "{printed}");
    let mut stored = Vec::new();
    contents(&server.data(), &mut stored);
    assert!(holds(&stored, "$auth/") && !holds(&stored, secret), "only a hash is kept");
    // The token was revoked, and nothing is allowed without one.
    server.run(&["--token-file", &file, "topic", "ls"]).exits(5).says("check the token");
    server.run(&["topic", "ls"]).exits(5);
    assert_eq!(server.http_get("/v1/topics").0, 401);
    assert_eq!(server.http_get("/healthz").0, 200);
}
