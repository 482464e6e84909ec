import { Waiting } from "./reports.js";

interface Ok {
    readonly batch: number;
    id: number;
}

/**
 * Collects the answers, and writes them together: once for all that one read of the worker's lines has caused.
 *
 * The reports of a handler are written before the result of its event. Until then they wait while the worker has not
 * read those that were written before. So a handler that reports often fills no memory.
 */
export class Output {
    private lines: (string | Ok)[] = [];
    /** The plain `ok` of each batch, which a later `ok` of the batch replaces. */
    private readonly oks = new Map<number, Ok>();
    /** The reports of the event in hand, by batch. They stand behind all lines of their batch. */
    private readonly reports = new Map<number, Waiting>();
    private isReporting = false;
    private isAsked = false;

    /** @param write Writes a text, and then calls `written`, when the worker has read what came before. */
    constructor(private readonly write: (text: string, written?: () => void) => void) {}

    /** Says that an event and all events before it in the batch are delivered. */
    ok(batch: number, id: number): void {
        this.bringReports(batch);
        const before = this.oks.get(batch);
        if (before === undefined) {
            const ok = { batch, id };
            this.oks.set(batch, ok);
            this.push(ok);
        } else {
            before.id = id;
        }
    }

    /** Writes another line about a batch. It stays behind the earlier lines of the batch. */
    line(batch: number, line: string): void {
        this.bringReports(batch);
        this.oks.delete(batch);
        this.push(`${line}\n`);
    }

    /** Writes the progress of the event in hand, unless a newer one comes before. */
    progress(batch: number, id: number, json: string): void {
        this.waiting(batch, id).progress(json);
    }

    /** Writes a line for the log of the worker. */
    log(batch: number, id: number, text: string): void {
        this.waiting(batch, id).log(text);
    }

    /** Writes all lines now. */
    flush(): void {
        const { lines } = this;
        let text = "";
        if (lines.length > 0) {
            this.lines = [];
            this.oks.clear();
            for (const line of lines) {
                text +=
                    typeof line === "string" ? line : `{"type":"ok","batch":${line.batch},"id":${line.id}}\n`;
            }
        }
        if (this.reports.size > 0 && !this.isReporting) {
            for (const waiting of this.reports.values()) {
                text += waiting.lines();
            }
            this.reports.clear();
            this.isReporting = true;
            this.write(text, this.reported);
        } else if (text !== "") {
            this.write(text);
        }
    }

    private waiting(batch: number, id: number): Waiting {
        let waiting = this.reports.get(batch);
        if (waiting === undefined) {
            waiting = new Waiting(batch, id);
            this.reports.set(batch, waiting);
            if (!this.isReporting) {
                this.ask();
            }
        }
        return waiting;
    }

    /** Puts the reports of a batch before the line that comes next. */
    private bringReports(batch: number): void {
        const waiting = this.reports.size === 0 ? undefined : this.reports.get(batch);
        if (waiting !== undefined) {
            this.reports.delete(batch);
            this.oks.delete(batch);
            this.push(waiting.lines());
        }
    }

    private push(line: string | Ok): void {
        this.lines.push(line);
        this.ask();
    }

    private ask(): void {
        if (!this.isAsked) {
            this.isAsked = true;
            setImmediate(this.flushAsAsked);
        }
    }

    private readonly flushAsAsked = () => {
        this.isAsked = false;
        this.flush();
    };

    private readonly reported = () => {
        this.isReporting = false;
        if (this.reports.size > 0) {
            this.ask();
        }
    };
}
