// Attributes: what is known about an argument of a rule.
#ifndef RECUR_ATTRS
#define RECUR_ATTRS

include "dialect/recur/RecurDialect.td"
include "mlir/IR/AttrTypeBase.td"
include "mlir/IR/EnumAttr.td"

def Recur_ArgKind : I32EnumAttr<"ArgKind", "where an argument of a rule comes from", [
  I32EnumAttrCase<"Input", 0, "input">,       // one value per token and head
  I32EnumAttrCase<"Param", 1, "param">,       // one value per head
  I32EnumAttrCase<"State", 2, "state">,       // carried from token to token
  I32EnumAttrCase<"Stale", 3, "stale">,       // a state at the start of the current block of tokens
  I32EnumAttrCase<"Position", 4, "position">, // 0-based index of the token in its sequence
  I32EnumAttrCase<"Head", 5, "head">,         // 0-based index of the head
  I32EnumAttrCase<"Heads", 6, "heads">,       // number of heads
]> {
  let cppNamespace = "::recur";
  let genSpecializedAttr = 0;
}

def Recur_Reduction : I32EnumAttr<"Reduction", "how a reduction combines entries", [
  I32EnumAttrCase<"Sum", 0, "sum">,
  I32EnumAttrCase<"Max", 1, "max">,
]> {
  let cppNamespace = "::recur";
  let genSpecializedAttr = 0;
}
def Recur_ReductionAttr : EnumAttr<Recur_Dialect, Recur_Reduction, "reduction">;

def Recur_Range : AttrDef<Recur_Dialect, "Range"> {
  let mnemonic = "range";
  let summary = "an interval that holds every entry of a value";
  let description = [{
    A promise by the caller, or a fact that follows from the operations. Infinite ends are always open in the
    reals but may be attained by a log decay of -inf, hence the flags are kept for them too.

    Example: `#recur.range<"(-inf, 0]">`.
  }];
  let parameters = (ins "::mlir::FloatAttr":$lower, "::mlir::FloatAttr":$upper, "bool":$loOpen, "bool":$hiOpen);
  let builders = [AttrBuilder<(ins "double":$lo, "double":$hi, "bool":$loOpen, "bool":$hiOpen)>];
  let hasCustomAssemblyFormat = 1;
  let genVerifyDecl = 1;
  let extraClassDeclaration = [{
    double getLo() const { return getLower().getValueAsDouble(); }
    double getHi() const { return getUpper().getValueAsDouble(); }
    static RangeAttr all(::mlir::MLIRContext *context);
    static RangeAttr closed(::mlir::MLIRContext *context, double lo, double hi);
    bool contains(double x) const;
    bool contains(RangeAttr other) const;
    /// True when no number lies in both.
    bool disjoint(RangeAttr other) const;
    /// What lies in both; null when nothing does.
    RangeAttr intersection(RangeAttr other) const;
    /// The interval as mathematics writes it: "(-inf, 0]".
    std::string str() const;
  }];
}

def Recur_Arg : AttrDef<Recur_Dialect, "Arg"> {
  let mnemonic = "arg";
  let summary = "one argument of a rule";
  let description = [{
    `name` is the user's. A `stale` argument names the state that it is a copy of and has the number of tokens of its
    block. `unit` promises a Euclidean norm of 1.

    Example: `#recur.arg<input "g" in <"(-inf, 0]">>`.
  }];
  let parameters = (ins "::recur::ArgKind":$kind, "::mlir::StringAttr":$name,
                        OptionalParameter<"::recur::RangeAttr">:$range,
                        DefaultValuedParameter<"bool", "false">:$unit,
                        DefaultValuedParameter<"int64_t", "0">:$block);
  let assemblyFormat = [{
    `<` $kind $name (`in` $range^)? (`unit` `` custom<UnitFlag>($unit)^)? (`block` `=` $block^)? `>`
  }];
}
def Recur_ArgArray : TypedArrayAttrBase<Recur_Arg, "arguments of a rule">;

#endif
