//! The shop in Rust: sells until the stock is gone, and emits what is left in the transaction
//! that takes it. Start it with `examples/outbox/run rust`.

use gapless_outbox::tokio_postgres::{self, NoTls};
use gapless_outbox::{Event, emit};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (mut client, connection) = tokio_postgres::connect(&std::env::var("DSN")?, NoTls).await?;
    tokio::spawn(connection);
    let schema = "gapless".parse()?;
    client.batch_execute(include_str!("shop.sql")).await?;
    for item in ["tea", "milk", "tea", "milk", "milk"] {
        let transaction = client.transaction().await?;
        let taken = transaction
            .query_opt(
                "UPDATE stock SET pieces = pieces - 1 WHERE item = $1 AND pieces > 0 RETURNING pieces",
                &[&item],
            )
            .await?;
        let Some(left) = taken else {
            // Rolled back: neither an order nor a message about it ever was.
            println!("no {item} left");
            continue;
        };
        let left: i32 = left.get(0);
        transaction.execute("INSERT INTO orders (item, pieces) VALUES ($1, 1)", &[&item]).await?;
        let payload = format!("{{\"item\": \"{item}\", \"left\": {left}}}");
        let event = Event {
            topic: "shop.stock",
            key: Some(item),
            payload: Some(payload.as_bytes()),
            ..Event::default()
        };
        emit(&transaction, &schema, &event).await?;
        transaction.commit().await?;
        println!("sold {item}");
    }
    Ok(())
}
