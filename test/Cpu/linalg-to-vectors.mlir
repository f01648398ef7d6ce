// RUN: recur-opt %s -linalg-to-vectors="vector-width=8 accumulators=4" | FileCheck %s

#id = affine_map<(d0) -> (d0)>
#matrix = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d0)>
#column = affine_map<(d0, d1) -> (d1)>

// Whole vectors in a loop, then half of one, then a scalar.
// CHECK-LABEL: func.func @rest(
// CHECK: scf.for
// CHECK: vector.load {{.*}} vector<8xf32>
// CHECK: math.absf {{.*}} : vector<8xf32>
// CHECK: vector.store {{.*}} vector<8xf32>
// CHECK: vector.load {{.*}} vector<4xf32>
// CHECK: memref.load
// CHECK: math.absf {{.*}} : f32
func.func @rest(%x: memref<21xf32>, %y: memref<21xf32>) {
  linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel"]}
      ins(%x : memref<21xf32>) outs(%y : memref<21xf32>) {
  ^bb0(%a: f32, %b: f32):
    %0 = math.absf %a : f32
    linalg.yield %0 : f32
  }
  return
}

// Four rows at once, each with its sums in a register; at the end the lanes of all four are folded together.
// CHECK-LABEL: func.func @rows(
// CHECK: scf.for
// CHECK: scf.for {{.*}} -> (vector<8xf32>, vector<8xf32>, vector<8xf32>, vector<8xf32>)
// CHECK-COUNT-4: arith.mulf {{.*}} vector<8xf32>
// CHECK: scf.yield
// CHECK: vector.shuffle {{.*}} [0, 1, 2, 3, 8, 9, 10, 11]
// CHECK: vector.shuffle {{.*}} [4, 5, 6, 7, 12, 13, 14, 15]
// CHECK: vector.store {{.*}} vector<4xf32>
func.func @rows(%s: memref<16x32xf32>, %q: memref<32xf32>, %o: memref<16xf32>) {
  linalg.generic {indexing_maps = [#matrix, #column, #row], iterator_types = ["parallel", "reduction"]}
      ins(%s, %q : memref<16x32xf32>, memref<32xf32>) outs(%o : memref<16xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %0 = arith.mulf %a, %b : f32
    %1 = arith.addf %c, %0 : f32
    linalg.yield %1 : f32
  }
  return
}

// Down the columns: strips of columns stay in registers while the rows pass; no lanes are folded.
// CHECK-LABEL: func.func @columns(
// CHECK: scf.for {{.*}} -> (vector<8xf32>, vector<8xf32>, vector<8xf32>, vector<8xf32>)
// CHECK: memref.load
// CHECK: vector.broadcast
// CHECK-NOT: vector.shuffle
// CHECK: return
func.func @columns(%s: memref<16x32xf32>, %q: memref<16xf32>, %o: memref<32xf32>) {
  linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d1, d0)>, #column, #row],
                  iterator_types = ["parallel", "reduction"]}
      ins(%s, %q : memref<16x32xf32>, memref<16xf32>) outs(%o : memref<32xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %0 = arith.mulf %a, %b : f32
    %1 = arith.addf %c, %0 : f32
    linalg.yield %1 : f32
  }
  return
}

// Entries that may lie apart are read one by one, unless the op promises that they do not.
// CHECK-LABEL: func.func @strided(
// CHECK-NOT: vector.load
// CHECK: memref.load
// CHECK: memref.cast
// CHECK: vector.load
func.func @strided(%x: memref<8xbf16, strided<[?], offset: ?>>, %y: memref<8xf32>) {
  linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel"]}
      ins(%x : memref<8xbf16, strided<[?], offset: ?>>) outs(%y : memref<8xf32>) {
  ^bb0(%a: bf16, %b: f32):
    %0 = arith.extf %a : bf16 to f32
    linalg.yield %0 : f32
  }
  linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel"]}
      ins(%x : memref<8xbf16, strided<[?], offset: ?>>) outs(%y : memref<8xf32>) attrs = {recur.dense} {
  ^bb0(%a: bf16, %b: f32):
    %0 = arith.extf %a : bf16 to f32
    linalg.yield %0 : f32
  }
  return
}
