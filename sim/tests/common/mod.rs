//! Runs many seeds.

use std::sync::Mutex;

/// Runs these seeds, some beside each other, and returns what all of them came to.
pub(crate) fn run_all<T: Default + Send>(
    seeds: impl Iterator<Item = u64> + Send,
    run: impl Fn(u64) -> Result<T, String> + Sync,
    add: impl Fn(&mut T, &T) + Sync,
) -> T {
    let (seeds, stories, total) =
        (Mutex::new(seeds), Mutex::new(Vec::new()), Mutex::new(T::default()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let Some(seed) = seeds.lock().expect("no run panics").next() else { return };
                    match run(seed) {
                        Ok(counts) => add(&mut total.lock().expect("no run panics"), &counts),
                        Err(story) => stories.lock().expect("no run panics").push(story),
                    }
                }
            });
        }
    });
    let stories = stories.into_inner().expect("no run panics");
    assert!(stories.is_empty(), "{} seeds failed:\n{}", stories.len(), stories.join("\n"));
    total.into_inner().expect("no run panics")
}
