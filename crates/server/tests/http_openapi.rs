//! The description of all paths, held against the running server.
//!
//! Every operation is sent with the examples it gives, to a server of its own, and its answer
//! is held against the schema it promises; and every path that the code has is described.

#[path = "common/http.rs"]
mod http;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use gapless_broker::{Delivery, From};
use gapless_core::{Message, Pattern, PublishOptions};
use gapless_jobs::names::snake;
use gapless_jobs::wire::{Isolation, JobRequest, JobResult, OutputRef, Status};
use http::{Request, Server};
use metrics_exporter_prometheus::PrometheusBuilder;
use serde_json::{Value, json};

const METHODS: [&str; 5] = ["get", "put", "post", "patch", "delete"];

/// Paths that are described elsewhere: the public specification of Durable Streams, and the
/// files of the page.
const DESCRIBED_ELSEWHERE: [&str; 4] = ["/v1/stream/", "/v1/auth/", "/page/", "/favicon.ico"];

fn description() -> Value {
    serde_json::from_str(include_str!("../../../docs/openapi.json")).expect("it is JSON")
}

/// Checks a value against a schema: the part of JSON Schema that the description uses.
fn check(root: &Value, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
    if let Some(name) = schema["$ref"].as_str() {
        let target = root.pointer(&name[1..]).ok_or_else(|| format!("{name} is not there"))?;
        return check(root, target, value, at);
    }
    let wrong = |what: String| Err(format!("{at}: {what}"));
    if let Some(all) = schema["allOf"].as_array() {
        all.iter().try_for_each(|each| check(root, each, value, at))?;
    }
    if let Some(choices) = schema["oneOf"].as_array() {
        let tried: Vec<_> = choices.iter().map(|each| check(root, each, value, at)).collect();
        if tried.iter().filter(|tried| tried.is_ok()).count() != 1 {
            return wrong(format!("{value} is not exactly one of: {tried:?}"));
        }
    }
    if let Some(words) = schema["enum"].as_array()
        && !words.contains(value)
    {
        return wrong(format!("{value} is none of {words:?}"));
    }
    let types: Vec<&str> = match &schema["type"] {
        Value::String(one) => vec![one],
        Value::Array(many) => many.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    let is = |kind: &&str| match *kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "null" => value.is_null(),
        other => panic!("the schema has a type {other}"),
    };
    if !types.is_empty() && !types.iter().any(is) {
        return wrong(format!("{value} is no {types:?}"));
    }
    if let (Some(least), Some(number)) = (schema["minimum"].as_i64(), value.as_i64())
        && number < least
    {
        return wrong(format!("{number} is below {least}"));
    }
    if let Some(items) = value.as_array().filter(|_| schema["items"].is_object()) {
        for (index, item) in items.iter().enumerate() {
            check(root, &schema["items"], item, &format!("{at}[{index}]"))?;
        }
    }
    let Some(members) = value.as_object() else { return Ok(()) };
    for name in schema["required"].as_array().into_iter().flatten() {
        if !members.contains_key(name.as_str().unwrap_or_default()) {
            return wrong(format!("{name} is missing in {value}"));
        }
    }
    for (name, member) in members {
        match (schema["properties"].get(name), &schema["additionalProperties"]) {
            (Some(property), _) => check(root, property, member, &format!("{at}.{name}"))?,
            (None, Value::Bool(false)) => return wrong(format!("{name} is not described")),
            (None, more @ Value::Object(_)) => check(root, more, member, at)?,
            _ => {}
        }
    }
    Ok(())
}

/// A server in the state that the examples are about.
fn prepared() -> Server {
    let server = Server::open();
    server.put("/v1/topics/orders", &json!({})).is(201);
    server.post("/v1/topics/orders/messages?key=k&header=a=b", "first").is(201);
    server.post("/v1/topics/orders/messages?id=i&ttl_ms=1000000", &b"\xff"[..]).is(201);
    let delayed = server.post("/v1/topics/orders/messages?delay_ms=1000000", "later").is(202);
    assert_eq!(delayed.json()["delayed"], 1);
    // A group with a member, a dead letter, and a message to be fetched.
    server.put("/v1/groups/work", &json!({ "source": "orders" })).is(201);
    let fetched = server.post("/v1/groups/work/fetch?member=m&max=1&wait_ms=30000", "").is(200);
    let ends = json!({ "leases": fetched.json()["leases"], "reason": "unreadable" });
    server.post_json("/v1/groups/work/terminate", &ends).is(200);
    let began = std::time::Instant::now();
    while server.get("/v1/groups/work").is(200).json()["dead_letters"] != 1 {
        assert!(began.elapsed() < http::DEADLINE, "no dead letter");
        std::thread::yield_now();
    }
    // A job that runs, one that was cancelled, and one that waits for a worker.
    let id = |digit: &str| digit.repeat(32);
    let submit = |digit| {
        let job = json!({ "job_id": id(digit), "exec": "render", "args": ["a"] });
        server.post_json("/v1/jobs", &job).is(201)
    };
    submit("3");
    let taken = server.post("/v1/workers/py/take?wait_ms=30000", "").is(200);
    assert_eq!(taken.json()["attempt"], 1);
    submit("2");
    server.post(&format!("/v1/jobs/{}/cancel", id("2")), "").is(200);
    submit("1");
    answer_requests(&server, "prices.get");
    server
}

/// Answers requests to a subject for as long as the server runs.
fn answer_requests(server: &Server, subject: &str) {
    let broker = server.broker.clone();
    let pattern = Pattern::parse(subject).expect("a pattern");
    let mut requests = broker.subscribe(&pattern, From::Now).expect("it is followed");
    server.runtime.spawn(async move {
        while let Ok(delivery) = requests.next().await {
            let Delivery::Messages(messages) = delivery else { continue };
            for each in messages.iter() {
                let to = each.message.header("reply-to").expect("the subject of the answer");
                let to = std::str::from_utf8(to).expect("text").parse().expect("a name");
                let answer = Message::new("12");
                drop(broker.publish(&to, &answer, &PublishOptions::default()));
            }
        }
    });
}

struct Operation<'a> {
    path: &'a str,
    method: &'a str,
    value: &'a Value,
    parameters: Vec<&'a Value>,
}

fn operations(root: &Value) -> Vec<Operation<'_>> {
    let mut found = Vec::new();
    for (path, item) in root["paths"].as_object().expect("paths") {
        let shared = item["parameters"].as_array().into_iter().flatten();
        for method in METHODS {
            let Some(value) = item.get(method) else { continue };
            let own = value["parameters"].as_array().into_iter().flatten();
            let parameters = shared.clone().chain(own).collect();
            found.push(Operation { path, method, value, parameters });
        }
    }
    found
}

impl Operation<'_> {
    /// The address with all examples in it.
    fn address(&self) -> String {
        let mut path = self.path.to_owned();
        let mut query = Vec::new();
        for parameter in &self.parameters {
            let name = parameter["name"].as_str().expect("a name");
            let example = match &parameter["example"] {
                Value::Null => continue,
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            match parameter["in"].as_str() {
                Some("path") => path = path.replace(&format!("{{{name}}}"), &example),
                _ => query.push(format!("{name}={example}")),
            }
        }
        if query.is_empty() { path } else { format!("{path}?{}", query.join("&")) }
    }

    fn is_stream(&self) -> bool {
        self.value["responses"]["200"]["content"].get("text/event-stream").is_some()
    }

    /// The requests that the examples describe, one for each kind of body.
    fn requests(&self) -> Vec<Request> {
        let request = Request::new(&self.method.to_uppercase(), &self.address());
        let Some(kinds) = self.value["requestBody"]["content"].as_object() else {
            return vec![request];
        };
        let with_body = |(kind, content): (&String, &Value)| {
            let kind = if kind == "*/*" { "text/plain" } else { kind };
            let body = match &content["example"] {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            request.clone().header("Content-Type", kind).body(body)
        };
        kinds.iter().map(with_body).collect()
    }
}

#[test]
fn every_operation_answers_its_examples_as_it_is_described() {
    let root = description();
    for operation in operations(&root) {
        let what = format!("{} {}", operation.method, operation.path);
        for (kind, content) in
            operation.value["requestBody"]["content"].as_object().into_iter().flatten()
        {
            check(&root, &content["schema"], &content["example"], &format!("{what}, {kind}"))
                .unwrap();
        }
        for request in operation.requests() {
            let server = prepared();
            if operation.is_stream() {
                let head = server.connect().begin(&request);
                assert_eq!(head.status, 200, "{what}");
                assert_eq!(head.header("content-type"), Some("text/event-stream"), "{what}");
                continue;
            }
            if operation.path == "/metrics" {
                // Needs the recorder of the whole process; the next test has it.
                continue;
            }
            let known_later = ["/v1/clients/{session}", "/v1/backups/{id}"];
            if known_later.iter().any(|path| operation.path.starts_with(path)) {
                // The number of a client, the id of a backup: other tests have one and use it.
                continue;
            }
            let answer = server.send(&request);
            let status = answer.status();
            assert!(status < 300, "{what} answers {status}: {}", answer.text());
            let described = &operation.value["responses"][status.to_string()];
            assert!(described.is_object(), "{what} answers {status}, which is not described");
            let Some(contents) = described["content"].as_object() else {
                assert!(answer.body.is_empty(), "{what}");
                continue;
            };
            let kind = answer.header("content-type").expect("a type");
            let Some(content) = contents.get(kind).or(contents.get("*/*")) else {
                panic!("{what} answers {kind}, which is not described");
            };
            let values = match kind {
                "application/json" => vec![answer.json()],
                "application/x-ndjson" => answer.lines(),
                _ => Vec::new(),
            };
            for value in values {
                check(&root, &content["schema"], &value, &what).unwrap();
            }
        }
    }
}

#[test]
fn every_operation_refuses_with_a_problem_as_described() {
    let root = description();
    let server = prepared();
    let problem = &json!({ "$ref": "#/components/schemas/Problem" });
    for operation in operations(&root) {
        let what = format!("{} {}", operation.method, operation.path);
        assert!(operation.value["responses"]["default"].is_object(), "{what}");
        let parametric = operation.path.contains('{');
        if !parametric {
            continue;
        }
        // No topic of this name can be, no seq and no id.
        let path =
            operation.path.replace("{name}", "a..b").replace("{seq}", "x").replace("{id}", "x");
        let path = path.replace("{member}", "x");
        let query = if operation.path.contains("latest") { "?key=k" } else { "" };
        let request = Request::new(&operation.method.to_uppercase(), &format!("{path}{query}"));
        let answer = server.send(&request);
        assert!((400..500).contains(&answer.status()), "{what}: {}", answer.status());
        assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{what}");
        check(&root, problem, &answer.json(), &what).unwrap();
    }
}

#[test]
fn f4_metrics_are_as_described_with_those_of_each_topic() {
    let recorder = PrometheusBuilder::new().install_recorder().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let runtime = gapless_server::runtime().unwrap();
    let options = gapless_broker::BrokerOptions::new(folder.path());
    let broker = gapless_broker::Broker::open(options).unwrap();
    let limits = gapless_server::http::HttpOptions { metrics_topics_max: 2, ..Default::default() };
    let listener = runtime.block_on(async {
        let mut listener =
            gapless_server::http::HttpListener::listen(limits, "127.0.0.1:0").await.unwrap();
        listener.serve(&broker, Some(recorder)).unwrap();
        listener
    });
    let mut client = http::Client::connect(listener.address());
    let mut send = |method: &str, path: &str| client.send(&Request::new(method, path).body("x"));
    send("POST", "/v1/topics/orders/messages?create=true").is(201);
    send("PUT", "/topic/a/create").is(405);
    let metrics = send("GET", "/metrics").is(200);
    let text = metrics.text();
    assert_eq!(metrics.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    assert!(text.contains("\ngapless_published_messages_total 1\n"), "{text}");
    assert!(text.contains("\ngapless_topic_next_seq{topic=\"orders\"} 2\n"), "{text}");
    for name in ["b", "c"] {
        send("GET", &format!("/topic/{name}/create")).is(200);
    }
    let text = send("GET", "/metrics").is(200).text();
    assert!(text.contains("\ngapless_topics_left_out 3\n"), "{text}");
    assert!(!text.contains("{topic="), "{text}");
    runtime.block_on(listener.close());
    broker.close().unwrap();
}

/// The paths in the code of the listener, with their methods as far as they can be read there.
fn routes() -> BTreeMap<String, BTreeSet<&'static str>> {
    let mut files = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src/http")];
    let mut found: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    while let Some(path) = files.pop() {
        if path.is_dir() {
            files.extend(std::fs::read_dir(&path).expect("a folder").map(|e| e.expect("e").path()));
            continue;
        }
        if path.extension().is_none_or(|extension| extension != "rs") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("a file");
        for after in text.split(".route(").skip(1) {
            let Some(path) = after.trim_start().strip_prefix('"') else { continue };
            let (path, handlers) = path.split_once('"').expect("a path ends");
            let end = handlers.find(".route(").or(handlers.find("\n}")).unwrap_or(handlers.len());
            let handlers = &handlers[..end.min(handlers.find('\n').unwrap_or(end))];
            let has = |method: &&&str| handlers.contains(&format!("{method}("));
            found.entry(path.into()).or_default().extend(METHODS.iter().filter(has));
        }
    }
    found
}

#[test]
fn every_path_of_the_server_is_described_with_its_methods() {
    let root = description();
    let server = prepared();
    let routes = routes();
    assert!(routes.len() > 20, "{routes:?}");
    for (path, methods) in &routes {
        let elsewhere = DESCRIBED_ELSEWHERE.iter().any(|known| path.starts_with(known));
        if elsewhere {
            continue;
        }
        let item = &root["paths"][path];
        assert!(item.is_object(), "{path} is not in docs/openapi.json; describe it there");
        for method in methods {
            assert!(item.get(*method).is_some(), "{method} {path} is not in docs/openapi.json");
        }
        // The server itself says which methods a path has.
        let path = path.replace("{name}", "orders").replace("{seq}", "1").replace("{id}", "1");
        let path = path.replace("{member}", "m");
        let refused = server.send(&Request::new("BREW", &path)).problem(405, "MethodNotAllowed");
        let allowed = refused.header("allow").expect("it says which").to_ascii_lowercase();
        let allowed: BTreeSet<&str> = allowed.split(',').filter(|each| *each != "head").collect();
        let described = METHODS.iter().filter(|method| item.get(**method).is_some());
        assert_eq!(allowed, described.copied().collect(), "{path}");
    }
    for path in root["paths"].as_object().expect("paths").keys() {
        assert!(routes.contains_key(path), "{path} is described, but not there");
    }
    assert_eq!(server.get("/openapi.json").is(200).json(), root);
}

/// A request and a result with every field there is: a new one does not compile until it is here.
fn full_job() -> (JobRequest, JobResult) {
    let text = || Some("x".to_owned());
    let request = JobRequest {
        job_id: "1".repeat(32),
        client_id: "c".to_owned(),
        exec_name: "render".to_owned(),
        args: vec!["a".to_owned()],
        files: BTreeMap::from([("in.txt".to_owned(), "eA==".to_owned())]),
        priority: Some(1),
        not_before_ms: Some(1),
        timeout_ms: Some(1),
        attempts_max: Some(1),
        deaths_max: Some(1),
        retry_ms: Some(vec![1]),
        retry_exit_codes: vec![1],
        key: text(),
        unique: text(),
        after: vec!["2".repeat(32)],
        cron: text(),
        archive: text(),
        stdin: text(),
        env: BTreeMap::from([("A".to_owned(), "b".to_owned())]),
        memory_bytes: Some(1),
        cpu_ms: Some(1),
        isolation: Some(Isolation::Kernel),
        attempt: Some(1),
        epoch: text(),
        lease_ms: Some(1),
    };
    let output_ref = OutputRef { url: "file:///x".to_owned(), bytes: 1, sha256: "0".to_owned() };
    let result = JobResult {
        job_id: "1".repeat(32),
        client_id: "c".to_owned(),
        exec_name: "render".to_owned(),
        status: Status::Failed,
        stdout: "x".to_owned(),
        stderr: "x".to_owned(),
        output_archive: text(),
        attempt: Some(1),
        epoch: text(),
        retryable: true,
        exit_code: Some(1),
        signal: Some(9),
        reason: text(),
        run_ms: Some(1),
        isolation: Some(Isolation::User),
        cgroup: text(),
        output_ref: Some(output_ref),
    };
    (request, result)
}

#[test]
fn every_field_of_a_job_is_described_where_it_is_sent() {
    let root = description();
    let (request, result) = full_job();
    let [request, result] = [
        serde_json::to_value(request).expect("plain data"),
        serde_json::to_value(result).expect("plain data"),
    ]
    .map(snake);
    let without = |value: &Value, names: &[&str]| {
        let mut value = value.clone();
        let members = value.as_object_mut().expect("an object");
        names.iter().for_each(|name| drop(members.remove(*name)));
        value
    };
    // What is sent to a worker, by a client, to a client, and by a worker.
    let submitted = without(&request, &["attempt", "epoch", "lease_ms"]);
    let failed = without(&result, &["client_id", "exec_name", "status"]);
    let done = without(&failed, &["reason", "retryable"]);
    for (schema, value) in [
        ("JobTaken", &request),
        ("JobRequest", &submitted),
        ("JobResult", &result),
        ("JobFailure", &failed),
        ("JobDone", &done),
    ] {
        let pointer = format!("/components/schemas/{schema}");
        let schema = root.pointer(&pointer).expect("it is described");
        check(&root, schema, value, &pointer).unwrap_or_else(|wrong| panic!("{wrong}"));
        let token = root.pointer("/components/schemas/JobAttempt/properties").expect("a token");
        for name in value.as_object().expect("an object").keys() {
            let known = schema["properties"].get(name).or(token.get(name));
            assert!(known.is_some(), "{pointer} has no {name}");
        }
    }
}
