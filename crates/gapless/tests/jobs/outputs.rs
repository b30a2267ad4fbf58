//! Output files that do not fit into a frame: in a folder, and in a bucket.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use crate::support::json;

use super::*;

/// Leaves more than fits, and says what it is.
const LARGE: &str = "head -c 5000000 /dev/urandom > large.bin; cksum < large.bin";

/// That an archive holds what the job said it left.
fn check_archive(place: &Place, name: &str, said: &str) {
    let archive = std::fs::File::open(place.path(name)).expect("it was fetched");
    let mut archive = zip::ZipArchive::new(archive).expect("an archive");
    let mut file = archive.by_name("large.bin").expect("its file");
    let mut large = Vec::new();
    file.read_to_end(&mut large).expect("it is whole");
    std::fs::write(place.path("large.bin"), large).expect("written");
    let large = std::fs::File::open(place.path("large.bin")).expect("it was written");
    let sum = Command::new("cksum").stdin(large).output().expect("it runs");
    assert_eq!(text(&sum.stdout), said);
}

#[test]
fn e10_output_files_that_do_not_fit_into_a_frame_are_stored_and_fetched() {
    let place = Place::new();
    place.exec("large", LARGE);
    let (_leader, address) = place.leader("0");
    let _worker = place.worker_with(&address, &["--outputs", "kept"]);
    let done = place.submit(&address, &["large", "--json", "--out", "out.zip"]).output();
    let result = json(&done);
    assert_eq!((&result["Status"], &result["OutputArchive"]), (&"OK".into(), &Value::Null));
    let said = result["Stdout"].as_str().expect("a text");
    check_archive(&place, "out.zip", said);
    // The reference has the attempt's token.
    let (url, id) = (&result["OutputRef"]["Url"], result["JobId"].as_str().expect("an id"));
    let (url, epoch) = (url.as_str().expect("a place"), &result["Epoch"]);
    let token = format!("/kept/{}-{id}-1.zip", epoch.as_str().expect("an epoch"));
    assert!(url.starts_with("file:///") && url.ends_with(&token), "{url}");
    // It is shown, and can be fetched later; something else in its place cannot.
    let shown = place.run(&["job", "show", id, "--leader", &address]);
    assert!(text(&shown.stdout).contains(url), "{}", text(&shown.stdout));
    let fetch = |file| place.run(&["job", "fetch", id, file, "--leader", &address]);
    assert!(fetch("again.zip").status.success());
    check_archive(&place, "again.zip", said);
    let stored = url.strip_prefix("file://").expect("a path");
    let bytes = std::fs::metadata(stored).expect("it is there").len();
    std::fs::write(stored, vec![0; bytes as usize]).expect("written");
    let failed = fetch("wrong.zip");
    let why = text(&failed.stderr);
    assert!(!failed.status.success() && why.contains("is not what the job left"), "{why}");
    assert!(!place.path("wrong.zip").exists());
}

#[test]
fn e10_what_a_lost_attempt_stored_never_counts() {
    let place = Place::new();
    let (gate, ran) = (place.path("gate"), place.path("ran"));
    let script = format!(
        "echo x >> {}; while [ ! -e {} ]; do sleep 0.05; done; {LARGE}",
        ran.display(),
        gate.display()
    );
    place.exec("large", &script);
    place.exec("small", "echo small");
    let (_leader, address) = place.leader("0");
    let id = "01234567-89ab-cdef-0123-456789abcdef";
    std::fs::create_dir(place.path("kept")).expect("a folder");
    let mut first = place.worker_with(&address, &["--allow", ".", "--outputs", "kept"]);
    let small = json(&place.submit(&address, &["small", "--json"]).output());
    let epoch = small["Epoch"].as_str().expect("an epoch");
    let job = place.submit(&address, &["large", "--id", id, "--json", "--out", "out.zip"]);
    wait_until("it runs", || lines(&ran) == 1);
    first.kill();
    let _second = place.worker_with(&address, &["--allow", ".", "--outputs", "kept"]);
    wait_until("it runs again", || lines(&ran) == 2);
    // As if the first attempt had still stored something before it was killed.
    let lost = place.path("kept").join(format!("{epoch}-{id}-1.zip"));
    std::fs::write(&lost, "of the lost attempt").expect("written");
    std::fs::write(&gate, "").expect("written");
    let result = json(&job.output());
    let url = result["OutputRef"]["Url"].as_str().expect("a place");
    assert!(url.ends_with(&format!("{id}-2.zip")), "{url}");
    check_archive(&place, "out.zip", result["Stdout"].as_str().expect("a text"));
}

#[test]
fn e10_output_files_go_to_a_bucket_and_come_back_from_it() {
    let place = Place::new();
    place.exec("large", LARGE);
    let bucket = Bucket::open();
    let (_leader, address) = place.leader("0");
    let with_keys = |words: &[&str]| {
        let mut command = place.command(words);
        command.env("AWS_ENDPOINT", &bucket.address).env("AWS_ALLOW_HTTP", "true");
        command.env("AWS_ACCESS_KEY_ID", "key").env("AWS_SECRET_ACCESS_KEY", "secret");
        command.env("AWS_REGION", "eu-north-1");
        command.spawn().expect("the program starts")
    };
    let place_of_outputs = ["--outputs", "s3://results/some/jobs"];
    let words = ["worker", "--leader", &address, "--json"];
    let mut worker = Running(with_keys(&[&words[..], &place_of_outputs].concat()));
    worker.first_line();
    let submit = ["job", "submit", "large", "--leader", &address, "--json", "--out", "out.zip"];
    let result = json(&Running::reading(with_keys(&submit)));
    assert_eq!(result["Status"], "OK", "{result}");
    let url = result["OutputRef"]["Url"].as_str().expect("a place");
    assert!(url.starts_with("s3://results/some/jobs/"), "{url}");
    check_archive(&place, "out.zip", result["Stdout"].as_str().expect("a text"));
    let stored = bucket.objects.lock().expect("no panic");
    let names: Vec<&String> = stored.keys().collect();
    assert_eq!(names, [&url.replace("s3://", "/")]);
    assert!(bucket.signed(), "requests are signed with the key");
}

/// A server that keeps objects as S3 does: `PUT` and `GET` by bucket and key.
struct Bucket {
    address: String,
    objects: Arc<Mutex<BTreeMap<String, Vec<u8>>>>,
    unsigned: Arc<Mutex<usize>>,
}

impl Bucket {
    fn open() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = format!("http://{}", listener.local_addr().expect("it listens"));
        let objects = Arc::<Mutex<BTreeMap<String, Vec<u8>>>>::default();
        let unsigned = Arc::<Mutex<usize>>::default();
        let (kept, counted) = (Arc::clone(&objects), Arc::clone(&unsigned));
        // Ends with the process of the test.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (kept, counted) = (Arc::clone(&kept), Arc::clone(&counted));
                std::thread::spawn(move || while answer(&stream, &kept, &counted).is_some() {});
            }
        });
        Self { address, objects, unsigned }
    }

    fn signed(&self) -> bool {
        *self.unsigned.lock().expect("no panic") == 0
    }
}

/// Answers one request; `None` at the end of the connection.
fn answer(
    stream: &TcpStream,
    objects: &Mutex<BTreeMap<String, Vec<u8>>>,
    unsigned: &Mutex<usize>,
) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let mut first = String::new();
    reader.read_line(&mut first).ok().filter(|bytes| *bytes > 0)?;
    let mut words = first.split_whitespace();
    let (verb, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let (mut length, mut signed) = (0, false);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let line = line.trim().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
        signed |= line.starts_with("authorization: aws4-hmac-sha256 credential=key/");
    }
    *unsigned.lock().expect("no panic") += usize::from(!signed);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let mut objects = objects.lock().expect("no panic");
    let found = match verb.as_str() {
        "PUT" => {
            objects.insert(path, body);
            Some(Vec::new())
        }
        _ => objects.get(&path).cloned(),
    };
    drop(objects);
    let (status, body) = match found {
        Some(body) => ("200 OK", body),
        None => ("404 Not Found", Vec::new()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\nETag: \"1\"\r\n\
         Last-Modified: Wed, 18 Nov 2026 06:00:00 GMT\r\n\r\n",
        body.len()
    );
    let mut out = stream;
    out.write_all(head.as_bytes()).ok()?;
    out.write_all(&body).ok()
}
