/** Collects the answers of all batches, and writes them together. */
import { Waiting } from "./reports.js";

/**
 * The lines that wait: once for all that one read of the worker's lines has caused, they are one write.
 *
 * The reports of a handler are written before the result of its event. Until then they wait while the worker has not
 * read those that were written before. So a handler that reports often fills no memory.
 */
export class Output {
    /** The lines, each with its end. `Answers` stands for the plain `ok` of its batch. */
    private lines: (string | Answers)[] = [];
    /** The batches with reports that wait. */
    private readonly reporting = new Set<Answers>();
    private isReporting = false;
    private isAsked = false;

    /** @param write Writes a text, and then calls `written`, when the worker has read what came before. */
    constructor(private readonly write: (text: string, written?: () => void) => void) {}

    /** Returns the answers of a batch. */
    batch(number: number): Answers {
        return new Answers(this, number);
    }

    /** @internal Returns the place of the line. */
    push(line: string | Answers): number {
        this.ask();
        return this.lines.push(line) - 1;
    }

    /** @internal Puts a line in the place of another one. */
    replace(at: number, line: string): void {
        this.lines[at] = line;
    }

    /** @internal The reports of the batch wait. */
    reports(batch: Answers): void {
        this.reporting.add(batch);
        if (!this.isReporting) {
            this.ask();
        }
    }

    /** @internal The reports of the batch wait no more. */
    reported(batch: Answers): void {
        this.reporting.delete(batch);
    }

    /** Writes all lines now. */
    flush(): void {
        const { lines } = this;
        let text = "";
        if (lines.length > 0) {
            this.lines = [];
            for (const line of lines) {
                text += typeof line === "string" ? line : line.takeOk();
            }
        }
        if (this.reporting.size > 0 && !this.isReporting) {
            for (const batch of [...this.reporting]) {
                text += batch.takeReports();
            }
            this.isReporting = true;
            this.write(text, this.written);
        } else if (text !== "") {
            this.write(text);
        }
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

    private readonly written = () => {
        this.isReporting = false;
        if (this.reporting.size > 0) {
            this.ask();
        }
    };
}

/** The answers of one batch. */
export class Answers {
    /** The event of the plain `ok` that waits, and the place of this line. */
    private okId = 0;
    private okAt = -1;
    /** The reports of the event in hand that wait. They stand behind all lines of the batch. */
    private waiting: Waiting | undefined = undefined;

    constructor(
        private readonly output: Output,
        private readonly number: number,
    ) {}

    /** Says that an event and all events before it in the batch are delivered. A later `ok` takes its place. */
    ok(id: number): void {
        if (this.waiting !== undefined) {
            this.add(this.takeReports());
        }
        this.okId = id;
        if (this.okAt < 0) {
            this.okAt = this.output.push(this);
        }
    }

    /** Writes another line. It stays behind the earlier lines of the batch. */
    line(line: string): void {
        this.add(`${this.takeReports()}${line}\n`);
    }

    /** Writes the progress of the event in hand, unless a newer one comes before. */
    progress(id: number, json: string): void {
        this.reports(id).progress(json);
    }

    /** Writes a line for the log of the worker. */
    log(id: number, text: string): void {
        this.reports(id).log(text);
    }

    /** @internal Returns the `ok` that waits. */
    takeOk(): string {
        this.okAt = -1;
        return `{"type":"ok","batch":${this.number},"id":${this.okId}}\n`;
    }

    /** @internal Returns the reports that wait. */
    takeReports(): string {
        const { waiting } = this;
        if (waiting === undefined) {
            return "";
        }
        this.waiting = undefined;
        this.output.reported(this);
        return waiting.lines();
    }

    private add(line: string): void {
        if (this.okAt >= 0) {
            this.output.replace(this.okAt, this.takeOk());
        }
        this.output.push(line);
    }

    private reports(id: number): Waiting {
        if (this.waiting === undefined) {
            this.waiting = new Waiting(this.number, id);
            this.output.reports(this);
        }
        return this.waiting;
    }
}
