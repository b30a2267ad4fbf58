//! Jobs over HTTP with the real program: submit, look, follow, manage, and workers that have no
//! connection between their requests, one of them in Python.

#[path = "support/jobs.rs"]
mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use support::{Place, Running, text, wait_until};

/// A server with its HTTP API.
struct Server {
    _running: Running,
    http: String,
    native: String,
}

impl Server {
    fn start(place: &Place) -> Self {
        let listen = ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--data", "data"];
        let words = [&["serve", "--json", "--set", "jobs.lease_ms=3000"][..], &listen].concat();
        let mut running = place.start(&words);
        let ready = running.first_line();
        let field = |name: &str| ready[name].as_str().expect("an address").to_owned();
        Self { http: field("http"), native: field("native"), _running: running }
    }

    /// Sends a request and reads all of the answer: status and body.
    fn send(&self, method: &str, path: &str, body: Option<&Value>) -> (u16, String) {
        let host = self.http.strip_prefix("http://").expect("an address");
        let mut stream = TcpStream::connect(host).expect("it listens");
        stream.set_read_timeout(Some(support::DEADLINE)).expect("a deadline");
        let body = body.map(Value::to_string).unwrap_or_default();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(head.as_bytes()).expect("sent");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("an answer");
        let answer = text(&answer);
        let (head, body) = answer.split_once("\r\n\r\n").expect("an answer");
        (head[9..12].parse().expect("a status"), body.to_owned())
    }

    fn json(&self, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
        let (status, text) = self.send(method, path, body);
        (status, serde_json::from_str(&text).unwrap_or(Value::Null))
    }

    fn get(&self, path: &str) -> Value {
        let (status, value) = self.json("GET", path, None);
        assert!(status < 300, "{path}: {status} {value}");
        value
    }

    fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        self.json("POST", path, Some(body))
    }

    fn submit(&self, request: &Value) -> String {
        let (status, answer) = self.post("/v1/jobs", request);
        assert_eq!(status, 201, "{answer}");
        answer["job_id"].as_str().expect("an id").to_owned()
    }
}

#[test]
fn e10_a_worker_in_python_serves_jobs_over_http() {
    let place = Place::new();
    let server = Server::start(&place);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/python-worker/worker.py");
    assert!(std::fs::read_to_string(script).expect("the example").lines().count() < 52);
    let mut python = Command::new("python3");
    python.args([script, &server.http, "py-1"]).stdin(Stdio::null()).stdout(Stdio::null());
    let _worker = Running(python.spawn().expect("python3 starts"));
    let id = server.submit(&json!({ "exec": "upper", "args": ["hello", "world"] }));
    let result = server.get(&format!("/v1/jobs/{id}/result?wait_ms=60000"));
    assert_eq!((&result["status"], &result["stdout"]), (&"OK".into(), &"HELLO WORLD\n".into()));
    assert_eq!((&result["client_id"], &result["attempt"]), (&"http".into(), &1.into()));
    // Clients of the native port get its results too.
    let done = place.submit(&server.native, &["upper", "native"]).output();
    assert_eq!((text(&done.stdout).trim(), done.status.code()), ("NATIVE", Some(0)));
}

#[test]
fn e5_leases_over_http_are_extended_fenced_and_lost() {
    let place = Place::new();
    let server = Server::start(&place);
    assert_eq!(server.json("POST", "/v1/workers/w/take?wait_ms=0", None).0, 204);
    let id = server.submit(&json!({ "exec": "calc", "retry_ms": [1] }));
    assert_eq!(server.json("POST", "/v1/workers/w/take?exec=other", None).0, 204);
    let (status, job) = server.json("POST", "/v1/workers/w/take?wait_ms=30000", None);
    assert_eq!((status, &job["job_id"], &job["attempt"]), (200, &id.as_str().into(), &1.into()));
    let first = json!({ "job_id": id, "attempt": 1, "epoch": job["epoch"] });
    assert_eq!(server.post("/v1/workers/w/extend", &first).1["cancelled"], false);
    // Another worker does not have it, and neither does another store.
    assert_eq!(server.post("/v1/workers/x/extend", &first).0, 409);
    let foreign = json!({ "job_id": id, "attempt": 1, "epoch": "elsewhere" });
    assert_eq!(server.post("/v1/workers/w/extend", &foreign).0, 409);
    // It is silent until its lease is over: the job is another's, and its result does not count.
    let (status, job) = server.json("POST", "/v1/workers/x/take?wait_ms=60000", None);
    assert_eq!((status, &job["attempt"]), (200, &2.into()));
    assert_eq!(server.post("/v1/workers/w/complete", &first).0, 409);
    let second = json!({ "job_id": id, "attempt": 2, "retryable": true, "reason": "not yet" });
    assert_eq!(server.post("/v1/workers/x/fail", &second).0, 200);
    let (_, job) = server.json("POST", "/v1/workers/x/take?wait_ms=60000", None);
    assert_eq!(job["attempt"], 3);
    let third = json!({ "job_id": id, "attempt": 3, "stdout": "7\n" });
    assert_eq!(server.post("/v1/workers/x/complete", &third).0, 200);
    let result = server.get(&format!("/v1/jobs/{id}/result"));
    assert_eq!((&result["status"], &result["stdout"]), (&"OK".into(), &"7\n".into()));
    let metrics = server.send("GET", "/metrics", None).1;
    for line in ["gapless_job_resends_total 2", "gapless_jobs_ended_total{how=\"succeeded\"} 1"] {
        assert!(metrics.contains(&format!("\n{line}\n")), "{line}: {metrics}");
    }
    assert!(metrics.contains("gapless_job_run_seconds{quantile=\"0.95\"}"), "{metrics}");
}

#[test]
fn e5_an_id_that_is_used_again_is_another_job_for_workers_with_and_without_a_connection() {
    let place = Place::new();
    place.exec("echo", "echo $1");
    let server = Server::start(&place);
    let id = "01234567-89ab-cdef-0123-456789abcdef";
    let ended = || server.get(&format!("/v1/jobs/{id}/result?wait_ms=60000"));
    let forget = || assert_eq!(server.send("DELETE", &format!("/v1/jobs/{id}"), None).0, 204);
    let take = || server.json("POST", "/v1/workers/w/take?exec=calc&wait_ms=60000", None).1;
    let token = |job: &Value| {
        let (attempt, epoch) = (&job["attempt"], &job["epoch"]);
        json!({ "job_id": id, "attempt": attempt, "epoch": epoch, "stdout": "late" })
    };
    server.submit(&json!({ "id": id, "exec": "calc", "args": ["old"] }));
    let old = token(&take());
    server.json("POST", &format!("/v1/jobs/{id}/cancel"), None);
    assert_eq!(ended()["status"], "CANCELLED");
    forget();
    server.submit(&json!({ "id": id, "exec": "calc", "args": ["new"] }));
    let new = take();
    assert_eq!((&new["attempt"], &new["args"]), (&1.into(), &json!(["new"])));
    for path in ["complete", "fail", "extend", "output"] {
        assert_eq!(server.post(&format!("/v1/workers/w/{path}"), &old).0, 409, "{path}");
    }
    assert_eq!(server.post("/v1/workers/w/complete", &token(&new)).0, 200);
    forget();
    let _worker = place.worker(&server.native);
    for word in ["one", "two", "three"] {
        server.submit(&json!({ "id": id, "exec": "echo", "args": [word] }));
        let result = ended();
        assert_eq!(
            (&result["stdout"], &result["attempt"]),
            (&format!("{word}\n").into(), &1.into())
        );
        forget();
    }
}

#[test]
fn e10_jobs_are_listed_followed_cancelled_and_forgotten_over_http() {
    let place = Place::new();
    let server = Server::start(&place);
    let first = server.submit(&json!({ "exec": "calc", "client": "a" }));
    let second = server.submit(&json!({ "exec": "calc", "client": "b", "priority": 9 }));
    let ids = |query: &str| -> Vec<Value> {
        let page = server.get(&format!("/v1/jobs?{query}"));
        page["jobs"].as_array().expect("jobs").iter().map(|job| job["job_id"].clone()).collect()
    };
    assert_eq!(ids(""), [json!(second), json!(first)]);
    assert_eq!(ids("client=a&state=ready&exec=calc"), [json!(first)]);
    let page = server.get("/v1/jobs?limit=1");
    assert_eq!(ids(&format!("next={}", page["next"])), [json!(first)]);
    for wrong in ["state=lost", "limit=0", "staet=ready"] {
        assert_eq!(server.json("GET", &format!("/v1/jobs?{wrong}"), None).0, 400, "{wrong}");
    }
    let refused = server.post("/v1/jobs", &json!({ "exec": "calc", "priorty": 1 }));
    assert_eq!(refused.0, 400, "{}", refused.1);
    assert_eq!(server.post("/v1/jobs", &json!({ "exec": "../calc" })).0, 400);
    assert_eq!(server.json("GET", "/v1/jobs/0123456789abcdef0123456789abcdef", None).0, 404);
    // What waits is cancelled at once, tried again, and forgotten when it has ended.
    assert_eq!(
        server.post(&format!("/v1/jobs/{first}/cancel"), &json!({})).1["state"],
        "cancelled"
    );
    assert_eq!(server.post(&format!("/v1/jobs/{first}/cancel"), &json!({})).0, 409);
    assert_eq!(server.post(&format!("/v1/jobs/{first}/retry"), &json!({})).1["state"], "ready");
    assert_eq!(server.json("DELETE", &format!("/v1/jobs/{first}"), None).0, 409);
    server.post(&format!("/v1/jobs/{first}/cancel"), &json!({}));
    assert_eq!(server.json("DELETE", &format!("/v1/jobs/{first}"), None).0, 204);
    assert_eq!(server.json("GET", &format!("/v1/jobs/{first}"), None).0, 404);
    // One that runs: what it writes is kept, its worker hears of the cancel, followers of the end.
    let (_, job) = server.json("POST", "/v1/workers/w/take?wait_ms=30000", None);
    assert_eq!(job["job_id"], second.as_str());
    assert_eq!(server.json("GET", &format!("/v1/jobs/{second}/result"), None).0, 202);
    let attempt = |more: &Value| {
        let mut body = json!({ "job_id": second, "attempt": 1 });
        body.as_object_mut().expect("an object").extend(more.as_object().cloned().expect("one"));
        body
    };
    let wrote = attempt(&json!({ "text": "half\n", "stream": "stderr" }));
    assert_eq!(server.post("/v1/workers/w/output", &wrote).0, 200);
    let log = server.get(&format!("/v1/jobs/{second}/log"));
    assert_eq!((&log["pieces"][0]["text"], &log["shortened"]), (&"half\n".into(), &false.into()));
    let overview = server.get("/v1/jobs/overview");
    assert_eq!((&overview["running"], &overview["dead"]), (&1.into(), &0.into()));
    assert_eq!(overview["workers"][0]["worker_id"], "w");
    // A schedule is listed as one, and ends when it is cancelled.
    let schedule = server.submit(&json!({ "exec": "calc", "cron": "0 3 1 1 *" }));
    assert_eq!(ids("schedules=true"), [json!(schedule)]);
    assert_eq!(server.get(&format!("/v1/jobs/{schedule}"))["cron"], "0 3 1 1 *");
    assert_eq!(server.post(&format!("/v1/jobs/{schedule}/cancel"), &json!({})).0, 200);
    assert_eq!(ids("schedules=true&state=waiting"), [] as [Value; 0]);
    std::thread::scope(|threads| {
        let follow =
            threads.spawn(|| server.send("GET", &format!("/v1/jobs/{second}/follow"), None));
        assert_eq!(server.post(&format!("/v1/jobs/{second}/cancel"), &json!({})).0, 200);
        let extended = server.post("/v1/workers/w/extend", &attempt(&json!({}))).1;
        assert_eq!(extended["cancelled"], true, "{extended}");
        server.post("/v1/workers/w/fail", &attempt(&json!({ "stderr": "stopped\n" })));
        let (status, events) = follow.join().expect("no panic");
        assert_eq!(status, 200);
        assert!(events.contains("event: result") && events.contains("CANCELLED"), "{events}");
    });
    wait_until("it has ended", || {
        server.get(&format!("/v1/jobs/{second}"))["state"] == "cancelled"
    });
}

#[test]
fn e10_dead_jobs_are_tried_again_in_bulk_over_http_as_many_as_are_asked_for() {
    let place = Place::new();
    let server = Server::start(&place);
    let submit = |exec: &str, client: &str| {
        server.submit(&json!({ "exec": exec, "client": client, "attempts_max": 1 }))
    };
    let mut dead: Vec<String> = (0..4).map(|_| submit("calc", "a")).collect();
    dead.extend([submit("calc", "b"), submit("render", "a")]);
    for _ in &dead {
        let (status, job) = server.json("POST", "/v1/workers/w/take?wait_ms=30000", None);
        assert_eq!(status, 200);
        let failed = json!({ "job_id": job["job_id"], "attempt": 1, "retryable": true });
        assert_eq!(server.post("/v1/workers/w/fail", &failed).0, 200);
    }
    let cancelled = submit("calc", "a");
    server.post(&format!("/v1/jobs/{cancelled}/cancel"), &json!({}));
    let state = |id: &str| server.get(&format!("/v1/jobs/{id}"))["state"].clone();
    assert!(dead.iter().all(|id| state(id) == "dead"));

    // The newest first, and no more than asked for; the rest is where it stopped.
    let retry = |query: &str| {
        let (status, done) = server.post(&format!("/v1/jobs/retry?{query}"), &json!({}));
        assert_eq!(status, 200, "{done}");
        assert_eq!(done["refused"], json!([]));
        done
    };
    let first = retry("exec=calc&client=a&limit=3");
    assert_eq!(first["retried"], json!([dead[3], dead[2], dead[1]]));
    let second = retry(&format!("exec=calc&client=a&limit=3&next={}", first["next"]));
    assert_eq!((&second["retried"], &second["next"]), (&json!([dead[0]]), &Value::Null));
    assert!(dead[..4].iter().all(|id| state(id) == "ready"));
    assert!(dead[4..].iter().all(|id| state(id) == "dead"), "others are left as they are");
    assert_eq!(state(&cancelled), "cancelled", "nothing was said of it");
    assert_eq!(retry("state=cancelled")["retried"], json!([cancelled]));
    assert_eq!(retry("")["retried"], json!([dead[5], dead[4]]));
    for wrong in ["state=running", "limit=0", "limit=1001", "exce=calc"] {
        assert_eq!(server.post(&format!("/v1/jobs/retry?{wrong}"), &json!({})).0, 400, "{wrong}");
    }
}
