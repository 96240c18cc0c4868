//! Groups of commands: an enum of commands for clap, which runs the one that the user gave.

/// Declares a group of commands, and its `run`, which returns the exit code of the command.
macro_rules! command_group {
    ($(#[$meta:meta])* $group:ident { $($(#[$attribute:meta])* $variant:ident($command:ty),)+ }) => {
        #[derive(Debug, clap::Subcommand)]
        $(#[$meta])*
        pub(crate) enum $group {
            $($(#[$attribute])* $variant($command),)+
        }

        impl $group {
            pub(crate) async fn run(self, client: &skilld_client::Client) -> anyhow::Result<u8> {
                match self {
                    $(Self::$variant(command) => command.run(client).await,)+
                }
            }
        }
    };
}
pub(crate) use command_group;
