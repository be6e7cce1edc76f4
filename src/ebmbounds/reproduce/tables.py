"""One table of text, written as Markdown or as LaTeX; the command line shows its head and rows itself."""

from dataclasses import dataclass

LATEX = str.maketrans({"%": r"\%", "&": r"\&", "_": r"\_", "#": r"\#", "±": r"$\pm$"})


@dataclass(frozen=True)
class Table:
    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        """The caption, then a table whose columns after the first are aligned to the right."""
        lines = [self.head, ("---", *("---:" for _ in self.head[1:])), *self.rows]
        return "\n".join([self.caption, "", *("| " + " | ".join(line) + " |" for line in lines)]) + "\n"

    def latex(self) -> str:
        """A `table` environment for documents that load the package booktabs."""

        def line(cells: tuple[str, ...]) -> str:
            return "    " + " & ".join(cell.translate(LATEX) for cell in cells) + r" \\"

        return "\n".join(
            [
                r"\begin{table}",
                r"  \centering",
                rf"  \caption{{{self.caption.translate(LATEX)}}}",
                rf"  \begin{{tabular}}{{l{'r' * (len(self.head) - 1)}}}",
                r"    \toprule",
                line(self.head),
                r"    \midrule",
                *map(line, self.rows),
                r"    \bottomrule",
                r"  \end{tabular}",
                r"\end{table}",
                "",
            ]
        )
