//! `gapless outbox`: rows of a PostgreSQL table into topics, commands and URLs, none skipped.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use gapless_outbox::{
    Database, FenceOptions, From, InstallOptions, Name, OutboxError, Right, run_fence,
};
use serde_json::json;

use super::{Global, outbox_consume, outbox_run, outbox_status};
use crate::config::Config;
use crate::exit::{Done, Exit, Failure};
use crate::output::{Output, ask};
use crate::remote::Interrupt;
use crate::values;

const EXAMPLES: &str = "\
Examples:
  gapless outbox install --dsn postgres://app@db/shop
  gapless outbox run --dsn postgres://app@db/shop --create-topics
  gapless outbox status --dsn postgres://app@db/shop --watch
  gapless outbox consume mailer --dsn postgres://app@db/shop --exec ./send-mail

The guide is docs/outbox.md.";

/// Move rows of a PostgreSQL outbox into topics, commands and URLs, none skipped
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct OutboxOptions {
    #[command(subcommand)]
    command: OutboxCommand,
}

/// Which database.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Database")]
pub(crate) struct Source {
    /// The database, as libpq takes it; the same as --set outbox.dsn=DSN
    #[arg(long, value_name = "DSN")]
    pub(crate) dsn: Option<String>,
    /// A file whose first line is the password [default: PGPASSWORD]
    #[arg(long, value_name = "FILE")]
    pub(crate) password_file: Option<PathBuf>,
    /// Certificates (PEM) that the server is verified with [default: the system's]
    #[arg(long, value_name = "FILE")]
    pub(crate) ca_file: Option<PathBuf>,
    /// The schema of the outbox [default: gapless]
    #[arg(long, value_name = "NAME")]
    pub(crate) schema: Option<Name>,
}

/// Roles that do not own the outbox.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Roles")]
struct Roles {
    /// A role that may write rows, and read none; may be repeated
    #[arg(long, value_name = "ROLE")]
    writer: Vec<String>,
    /// A role that may run the fence, relays and consumers; may be repeated
    #[arg(long, value_name = "ROLE")]
    relay: Vec<String>,
}

impl Roles {
    async fn grant(&self, database: &Database) -> Result<(), Failure> {
        let each = |roles: &[String], right| -> Vec<_> {
            roles.iter().map(|role| (role.clone(), right)).collect()
        };
        let all = [each(&self.writer, Right::Write), each(&self.relay, Right::Run)];
        for (role, right) in all.concat() {
            gapless_outbox::grant(database, &role, right).await.map_err(failed)?;
        }
        Ok(())
    }
}

#[derive(Debug, Subcommand)]
enum OutboxCommand {
    /// Create the tables and functions of an outbox
    #[command(after_help = "Examples:\n  gapless outbox install --dsn postgres://app@db/shop\n  \
                            gapless outbox install --dsn … --retention 7d --writer webapp")]
    Install {
        #[command(flatten)]
        source: Source,
        /// How long rows are kept
        #[arg(long, value_name = "TIME", default_value = "30d", value_parser = values::duration)]
        retention: Duration,
        /// How many numbers a partition holds
        #[arg(long, value_name = "ROWS", default_value_t = 1_000_000)]
        #[arg(value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
        partition_rows: u64,
        /// The table of the rows
        #[arg(long, value_name = "NAME", default_value = "outbox")]
        table: Name,
        /// The table of the consumers' offsets
        #[arg(long, value_name = "NAME", default_value = "consumer_offsets")]
        offsets: Name,
        #[command(flatten)]
        roles: Roles,
    },
    /// Allow roles to write rows, or to run the fence, relays and consumers
    #[command(after_help = "Examples:\n  gapless outbox grant --writer webapp --dsn …\n  \
                            gapless outbox grant --relay gapless --dsn …")]
    Grant {
        #[command(flatten)]
        source: Source,
        #[command(flatten)]
        roles: Roles,
    },
    /// Bring the tables to the version of this program
    #[command(after_help = "Examples:\n  gapless outbox upgrade --dsn postgres://app@db/shop")]
    Upgrade {
        #[command(flatten)]
        source: Source,
    },
    /// Remove the outbox with all its rows and offsets
    #[command(after_help = "Examples:\n  gapless outbox uninstall --dsn postgres://app@db/shop")]
    Uninstall {
        #[command(flatten)]
        source: Source,
        /// Do not ask
        #[arg(long, short)]
        yes: bool,
    },
    /// Show what is settled, which consumers lag, and what holds them up
    #[command(after_help = "Examples:\n  gapless outbox status --dsn postgres://app@db/shop\n  \
                            gapless outbox status --watch\n  gapless outbox status --json")]
    Status {
        #[command(flatten)]
        source: Source,
        /// Show it again every second, until Ctrl-C
        #[arg(long, short)]
        watch: bool,
    },
    /// Run only the fence, which determines what is settled for consumers
    #[command(after_help = "Examples:\n  gapless outbox fence --dsn postgres://app@db/shop\n\n\
                            `outbox run` and `serve` run it too. Of several one works, the \
                            others stand by.")]
    Fence {
        #[command(flatten)]
        source: Source,
    },
    /// Move rows into topics of a server, each exactly once; runs the fence too
    #[command(after_help = outbox_run::EXAMPLES)]
    Run(outbox_run::RunOptions),
    /// Hand rows to a command or a URL
    #[command(after_help = outbox_consume::EXAMPLES)]
    Consume(outbox_consume::ConsumeOptions),
    /// Put a consumer somewhere else: back for a replay, to the beginning for a rebuild
    #[command(after_help = "Examples:\n  gapless outbox reset mailer --to 1200\n  \
                            gapless outbox reset search --to beginning")]
    Reset {
        #[command(flatten)]
        source: Source,
        /// Which consumer
        consumer: String,
        /// After which row: a seq, beginning, oldest or now
        #[arg(long, value_name = "PLACE")]
        to: From,
    },
    /// Begin a new epoch, after the database was replaced by an older copy
    #[command(after_help = "Examples:\n  gapless outbox epoch --dsn postgres://app@db/shop")]
    Epoch {
        #[command(flatten)]
        source: Source,
    },
}

impl Source {
    /// The database, from flags and the configuration.
    pub(crate) fn database(&self, config: &Config) -> Result<Database, Failure> {
        let dsn = self.dsn.as_deref().unwrap_or_else(|| config.text("outbox.dsn"));
        if dsn.is_empty() {
            return Err(Failure::words("which database?")
                .hint("say it with --dsn postgres://user@host/database, or set outbox.dsn"));
        }
        let path = |flag: &Option<PathBuf>, key| {
            let set = Some(config.text(key)).filter(|text| !text.is_empty()).map(PathBuf::from);
            flag.clone().or(set)
        };
        let schema = match &self.schema {
            Some(schema) => schema.clone(),
            None => config
                .text("outbox.schema")
                .parse()
                .map_err(|error| config.bad("outbox.schema", &format!("{error}")))?,
        };
        let mut database = Database::parse(dsn).map_err(Failure::words)?.in_schema(schema);
        if let Some(file) = path(&self.password_file, "outbox.password_file") {
            database = database.password_file(&file).map_err(Failure::words)?;
        }
        if let Some(file) = path(&self.ca_file, "outbox.ca_file") {
            database = database.ca_file(&file);
        }
        Ok(database)
    }
}

/// What an error of the outbox means for a command.
pub(crate) fn failed(error: OutboxError) -> Failure {
    let exit = match &error {
        OutboxError::Unreachable { .. }
        | OutboxError::TooManyConnections { .. }
        | OutboxError::Lost(_)
        | OutboxError::TimedOut(_) => Exit::NoConnection,
        OutboxError::NotAllowed { .. } | OutboxError::ReadOnly { .. } => Exit::Rejected,
        OutboxError::NotInstalled { .. } | OutboxError::NoConsumer { .. } => Exit::NotFound,
        OutboxError::Dsn(_) | OutboxError::Name(_) | OutboxError::File { .. } => Exit::Words,
        _ => Exit::Failed,
    };
    Failure::new(exit, error)
}

pub(crate) fn run(
    options: OutboxOptions,
    config: &Config,
    global: &Global,
    out: &mut Output,
) -> Done {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        match options.command {
            OutboxCommand::Install { source, retention, partition_rows, table, offsets, roles } => {
                let options = InstallOptions { outbox: table, offsets, partition_rows, retention };
                install(&source.database(config)?, &options, &roles, out).await
            }
            OutboxCommand::Grant { source, roles } => {
                if roles.writer.is_empty() && roles.relay.is_empty() {
                    return Err(Failure::words("which role?").hint("say --writer or --relay"));
                }
                roles.grant(&source.database(config)?).await?;
                let value = json!({ "writers": roles.writer, "relays": roles.relay });
                out.result(&value, "granted")?;
                Ok(Exit::Ok)
            }
            OutboxCommand::Upgrade { source } => {
                let database = source.database(config)?;
                let before = gapless_outbox::upgrade(&database).await.map_err(failed)?;
                let now = gapless_outbox::VERSION;
                let text = format!("version {now}, before {before}");
                out.result(&json!({ "version": now, "before": before }), text)?;
                Ok(Exit::Ok)
            }
            OutboxCommand::Uninstall { source, yes } => {
                uninstall(&source.database(config)?, yes, out).await
            }
            OutboxCommand::Status { source, watch } => {
                outbox_status::run(&source.database(config)?, watch, out).await
            }
            OutboxCommand::Fence { source } => {
                let mut interrupt = Interrupt::listen()?;
                let fence =
                    run_fence(source.database(config)?, FenceOptions::default(), interrupt.came());
                fence.await.map_err(failed)?;
                Ok(Exit::Ok)
            }
            OutboxCommand::Run(options) => {
                Box::pin(outbox_run::run(options, config, global, out)).await
            }
            OutboxCommand::Consume(options) => outbox_consume::run(options, config, out).await,
            OutboxCommand::Reset { source, consumer, to } => {
                let database = source.database(config)?;
                let seq = gapless_outbox::reset(&database, &consumer, to).await.map_err(failed)?;
                let text = format!("{consumer} goes on after {seq}");
                out.result(&json!({ "consumer": consumer, "last_seq": seq }), text)?;
                Ok(Exit::Ok)
            }
            OutboxCommand::Epoch { source } => {
                let database = source.database(config)?;
                gapless_outbox::begin_epoch(&database, "by hand").await.map_err(failed)?;
                out.result(&json!({ "begun": true }), "a new epoch began")?;
                Ok(Exit::Ok)
            }
        }
    })
}

async fn install(
    database: &Database,
    options: &InstallOptions,
    roles: &Roles,
    out: &mut Output,
) -> Done {
    gapless_outbox::install(database, options).await.map_err(failed)?;
    roles.grant(database).await?;
    let schema = database.schema();
    let text = format!(
        "created {schema}.{} in {}\nnow write rows in your transactions: SELECT {schema}.emit(\
         'topic', 'key', 'upsert')",
        options.outbox,
        database.server()
    );
    let version = gapless_outbox::VERSION;
    out.result(&json!({ "schema": schema.as_str(), "version": version }), text)?;
    Ok(Exit::Ok)
}

async fn uninstall(database: &Database, yes: bool, out: &mut Output) -> Done {
    let schema = database.schema();
    if !yes {
        let question = format!("Remove schema {schema} of {} with all rows?", database.server());
        if !out.can_ask() || !ask(&question)? {
            return Err(Failure::words("nothing was removed").hint("say it with --yes"));
        }
    }
    gapless_outbox::uninstall(database).await.map_err(failed)?;
    out.result(&json!({ "removed": schema.as_str() }), format_args!("removed {schema}"))?;
    Ok(Exit::Ok)
}
