/** Messages for people. Standard output is never written to. */
export type LogLevel = "info" | "warn" | "error";

/** A function that gets the messages of a worker. */
export type Log = (level: LogLevel, message: string, error?: unknown) => void;

/** Writes messages to standard error. */
export const logToStderr: Log = (level, message, error) => {
    const detail =
        error === undefined
            ? ""
            : `: ${error instanceof Error ? (error.stack ?? error.message) : String(error)}`;
    process.stderr.write(`seriatim ${level}: ${message}${detail}\n`);
};
