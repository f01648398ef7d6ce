// RUN: recur-opt %s -fuse-loops | FileCheck %s

#matrix = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d0)>
#column = affine_map<(d0, d1) -> (d1)>

// CHECK-LABEL: func.func @update_then_read(
// CHECK: linalg.generic {{.*}} iterator_types = ["parallel", "reduction"]
// CHECK: %[[NEW:.*]] = arith.mulf
// CHECK: %[[PRODUCT:.*]] = arith.mulf %[[NEW]]
// CHECK: %[[SUM:.*]] = arith.addf %{{.*}}, %[[PRODUCT]]
// CHECK: linalg.yield %[[NEW]], %[[SUM]]
// CHECK-NOT: linalg.generic
func.func @update_then_read(%q: memref<4xf32>, %scale: f32) {
  %zero = arith.constant 0.0 : f32
  %s = memref.alloc() : memref<8x4xf32>
  %o = memref.alloc() : memref<8xf32>
  linalg.generic {indexing_maps = [#matrix, #matrix], iterator_types = ["parallel", "parallel"]}
      ins(%s : memref<8x4xf32>) outs(%s : memref<8x4xf32>) {
  ^bb0(%a: f32, %b: f32):
    %m = arith.mulf %a, %scale : f32
    linalg.yield %m : f32
  }
  linalg.fill ins(%zero : f32) outs(%o : memref<8xf32>)
  linalg.generic {indexing_maps = [#matrix, #column, #row], iterator_types = ["parallel", "reduction"]}
      ins(%s, %q : memref<8x4xf32>, memref<4xf32>) outs(%o : memref<8xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %m = arith.mulf %a, %b : f32
    %n = arith.addf %c, %m : f32
    linalg.yield %n : f32
  }
  return
}

// Something between them needs the update.
// CHECK-LABEL: func.func @read_between(
// CHECK-COUNT-2: linalg.generic
func.func @read_between(%q: memref<4xf32>, %scale: f32) -> f32 {
  %c0 = arith.constant 0 : index
  %s = memref.alloc() : memref<8x4xf32>
  %o = memref.alloc() : memref<8xf32>
  linalg.generic {indexing_maps = [#matrix, #matrix], iterator_types = ["parallel", "parallel"]}
      ins(%s : memref<8x4xf32>) outs(%s : memref<8x4xf32>) {
  ^bb0(%a: f32, %b: f32):
    %m = arith.mulf %a, %scale : f32
    linalg.yield %m : f32
  }
  %x = memref.load %s[%c0, %c0] : memref<8x4xf32>
  linalg.generic {indexing_maps = [#matrix, #column, #row], iterator_types = ["parallel", "reduction"]}
      ins(%s, %q : memref<8x4xf32>, memref<4xf32>) outs(%o : memref<8xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %m = arith.mulf %a, %b : f32
    %n = arith.addf %c, %m : f32
    linalg.yield %n : f32
  }
  return %x : f32
}

// A second sum along the other axis cannot join the first: its rows are not complete.
// CHECK-LABEL: func.func @two_ways(
// CHECK: iterator_types = ["parallel", "reduction"]
// CHECK: iterator_types = ["parallel", "reduction"]
func.func @two_ways(%q: memref<4xf32>, %r: memref<8xf32>, %scale: f32) {
  %s = memref.alloc() : memref<8x4xf32>
  %o = memref.alloc() : memref<8xf32>
  %p = memref.alloc() : memref<4xf32>
  linalg.generic {indexing_maps = [#matrix, #matrix], iterator_types = ["parallel", "parallel"]}
      ins(%s : memref<8x4xf32>) outs(%s : memref<8x4xf32>) {
  ^bb0(%a: f32, %b: f32):
    %m = arith.mulf %a, %scale : f32
    linalg.yield %m : f32
  }
  linalg.generic {indexing_maps = [#matrix, #column, #row], iterator_types = ["parallel", "reduction"]}
      ins(%s, %q : memref<8x4xf32>, memref<4xf32>) outs(%o : memref<8xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %m = arith.mulf %a, %b : f32
    %n = arith.addf %c, %m : f32
    linalg.yield %n : f32
  }
  linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d1, d0)>, #column, #row],
                  iterator_types = ["parallel", "reduction"]}
      ins(%s, %r : memref<8x4xf32>, memref<8xf32>) outs(%p : memref<4xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %m = arith.mulf %a, %b : f32
    %n = arith.addf %c, %m : f32
    linalg.yield %n : f32
  }
  return
}
