# find_package(Recur): targets Recur::rt and Recur::recurc, function recur_add_library.
include(CMakeFindDependencyMacro)
find_dependency(Threads)
include(${CMAKE_CURRENT_LIST_DIR}/RecurTargets.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/RecurAddLibrary.cmake)
