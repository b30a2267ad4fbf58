//! A worker whose jobs are a function of this program: it counts words.
//!
//! ```sh
//! gapless serve &
//! cargo run -p gapless-jobs --example words &
//! gapless job submit words one two three
//! ```

use gapless_jobs::Worker;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let leader = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:4281".to_owned());
    let id = format!("words-{}", std::process::id());
    Worker::connect(leader, id)?
        .handle("words", |job| async move {
            let words: usize = job.args().iter().map(|arg| arg.split_whitespace().count()).sum();
            Ok(format!("{words} words\n"))
        })?
        .run(async { drop(tokio::signal::ctrl_c().await) })
        .await;
    Ok(())
}
