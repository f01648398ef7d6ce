// Tokens of a spec to its syntax tree.
#pragma once
#include "lib/Frontend/Ast.h"

namespace recur::frontend {

class DiagnosticEngine;

/// How deep parentheses, signs and loops may nest.
constexpr unsigned maxNesting = 256;
/// How high the tree of one expression may grow (`a + a + ...` grows with every term).
constexpr unsigned maxDepth = 1000;

/// Parses a whole spec. After a syntax error it goes on with the next statement, so that one run reports all
/// of them; what it returns then holds the statements that were understood.
Spec parse(const SourceFile &file, DiagnosticEngine &diags);

} // namespace recur::frontend
