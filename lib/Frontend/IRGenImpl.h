// The state of the IR generator: statements are in IRGen.cpp, expressions in IRGenExpr.cpp.
#pragma once
#include "dialect/recur/Recur.h"
#include "lib/Frontend/Builtins.h"
#include "lib/Frontend/IRGen.h"
#include "mlir/IR/Builders.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/SetVector.h"

namespace recur::frontend {

class IRGen {
public:
  IRGen(const Program &program, mlir::MLIRContext &context);

  mlir::OwningOpRef<mlir::ModuleOp> run();

private:
  using Environment = llvm::DenseMap<const Symbol *, mlir::Value>;

  // Structure.
  void collectArguments();
  void addArgument(ArgKind kind, llvm::StringRef name, mlir::Type type, const Symbol *symbol,
                   int64_t block = 0);
  void bindArguments(mlir::Region &region, bool init);
  void emitInit(mlir::Region &region);
  void emitStatement(const Stmt &stmt);
  void emitAssign(const Stmt &stmt);
  void emitLoop(const Stmt &stmt);
  void emitOverTokens(llvm::ArrayRef<const Stmt *> stmts, int64_t size, SourceRange range);

  // Which symbols statements read and assign, in order.
  using SymbolSet = llvm::SetVector<const Symbol *>;
  void collectReads(const Expr &expr, SymbolSet &reads, llvm::SetVector<const Expr *> &decays) const;
  void collectReads(const Stmt &stmt, SymbolSet &reads, llvm::SetVector<const Expr *> &decays) const;
  void collectAssigned(const Stmt &stmt, SymbolSet &assigned) const;
  bool isReadOutside(const Symbol &symbol, llvm::ArrayRef<const Stmt *> inside) const;

  // Expressions. A diag is held as its entries, n x 1; `matrix` makes the n x n value of it.
  mlir::Value value(const Expr &expr);
  mlir::Value matrix(const Expr &expr);
  mlir::Value convert(const Expr &expr, const Shape &shape);
  mlir::Value emitName(const Expr &expr);
  mlir::Value emitElementwise(const Expr &expr);
  mlir::Value emitProduct(const Expr &expr);
  mlir::Value emitPower(const Expr &expr);
  mlir::Value emitSquaredNorm(const Expr &of, mlir::Location loc);
  mlir::Value emitCall(const Expr &expr);
  mlir::Value emitPrimitive(const Expr &expr);
  mlir::Value promise(mlir::Value value, const Interval &interval, bool unit, mlir::Location loc);
  mlir::Value number(double value, mlir::Location loc);
  mlir::Value number(double value, mlir::Type type, mlir::Location loc);
  mlir::Value reduce(Reduction kind, mlir::Value operand, bool rows, bool cols, mlir::Location loc);

  mlir::Attribute dim(const Dim &dim);
  MatType type(const Shape &shape);
  RangeAttr range(const Interval &interval);
  mlir::Location location(SourceRange range);
  mlir::Location location(const Expr &expr) { return location(expr.range); }
  template <typename OpT, typename... Args>
  mlir::Value make(mlir::Location loc, Args &&...args) {
    return builder.createOrFold<OpT>(loc, std::forward<Args>(args)...);
  }

  const Program &program;
  mlir::MLIRContext &context;
  mlir::OpBuilder builder;

  struct Argument {
    ArgAttr attribute;
    mlir::Type type;
    const Symbol *symbol; // what it is the value of; a stale state's symbol for Stale
  };
  std::vector<Argument> arguments;
  const Symbol *position = nullptr;
  Environment values; // of symbols, at the point of the text that is being emitted
  Environment stale;  // of states at the start of their block
  llvm::DenseMap<const Expr *, mlir::Value> decays; // factors of decay() in the statements over tokens
};

} // namespace recur::frontend
