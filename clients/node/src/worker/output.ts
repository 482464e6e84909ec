interface Ok {
    readonly batch: number;
    id: number;
}

/** Collects the answers, and writes them together: once for all that one read of the worker's lines has caused. */
export class Output {
    private lines: (string | Ok)[] = [];
    /** The plain `ok` of each batch, which a later `ok` of the batch replaces. */
    private readonly oks = new Map<number, Ok>();
    private isAsked = false;

    constructor(private readonly write: (text: string) => void) {}

    /** Says that an event and all events before it in the batch are delivered. */
    ok(batch: number, id: number): void {
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
        this.oks.delete(batch);
        this.push(line);
    }

    /** Writes all lines now. */
    flush(): void {
        const { lines } = this;
        if (lines.length === 0) {
            return;
        }
        this.lines = [];
        this.oks.clear();
        let text = "";
        for (const line of lines) {
            text +=
                typeof line === "string"
                    ? `${line}\n`
                    : `{"type":"ok","batch":${line.batch},"id":${line.id}}\n`;
        }
        this.write(text);
    }

    private push(line: string | Ok): void {
        this.lines.push(line);
        if (!this.isAsked) {
            this.isAsked = true;
            setImmediate(this.flushAsAsked);
        }
    }

    private readonly flushAsAsked = () => {
        this.isAsked = false;
        this.flush();
    };
}
