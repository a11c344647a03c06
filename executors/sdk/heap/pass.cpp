// The pass of `ciel-cc`: lets loads and stores check whether their page is in memory (KVM-2).
//
//     clang -fpass-plugin=pass.so ...     CIEL_CC_MEMORY=heap|full
//
// Heap translation checks the accesses that may concern the heap. Full translation moves variables
// of stacks and globals into pages, too, and checks each access. The pass comes after all
// optimisations, so what lives in registers costs nothing. An access that it leaves alone is still
// right, since absent pages are protected (runtime.h); it only takes longer. It refuses code for
// which that is not true.
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/StringSet.h"
#include "llvm/Analysis/ValueTracking.h"
#include "llvm/IR/DiagnosticInfo.h"
#include "llvm/IR/IRBuilder.h"
#include "llvm/IR/InlineAsm.h"
#include "llvm/IR/InstIterator.h"
#include "llvm/IR/IntrinsicInst.h"
#include "llvm/IR/MDBuilder.h"
#include "llvm/IR/Module.h"
#include "llvm/Passes/PassBuilder.h"
#include "llvm/Passes/PassPlugin.h"
#include "llvm/Transforms/Utils/BasicBlockUtils.h"

#include <cstdlib>

using namespace llvm;

namespace {

// As in runtime.h.
constexpr uint64_t GranuleShift = 14;
constexpr uint64_t Table = 0x100000000000;
constexpr uint64_t Cold = 1;

constexpr uint64_t InlineBytes = 128; // a copy of so few bytes stays in place
constexpr uint64_t ReadyBytes = 4096;  // of an argument of a library's function
constexpr char GlobalSection[] = "ciel_globals";

bool startsWith(StringRef Text, StringRef Prefix) {
  return Text.substr(0, Prefix.size()) == Prefix;
}

// An access to memory: which bytes, and whether they change.
struct Access {
  Value *Pointer;
  bool IsWrite;
};

class Translation {
public:
  Translation(Module &M, bool IsFull)
      : M(M), IsFull(IsFull), Layout(M.getDataLayout()), Int64(Type::getInt64Ty(M.getContext())),
        Int8(Type::getInt8Ty(M.getContext())), Pointer(PointerType::getUnqual(M.getContext())),
        Void(Type::getVoidTy(M.getContext())) {}

  bool run() {
    renameAllocators();
    if (IsFull)
      moveGlobals();
    for (Function &F : M)
      if (!F.isDeclaration() && !F.hasAvailableExternallyLinkage() && !startsWith(F.getName(), "ciel_heap_"))
        translate(F);
    return true;
  }

private:
  Module &M;
  const bool IsFull;
  const DataLayout &Layout;
  Type *Int64, *Int8, *Pointer, *Void;

  FunctionCallee runtime(StringRef Name, Type *Result, ArrayRef<Type *> Arguments) {
    return M.getOrInsertFunction(Name, FunctionType::get(Result, Arguments, false));
  }

  void refuse(Instruction &I, const Twine &Why) {
    I.getContext().diagnose(
        DiagnosticInfoUnsupported(*I.getFunction(), Why + " (--memory=" + (IsFull ? "full" : "heap") + ")", I.getDebugLoc()));
  }

  // Allocations of the program lie in the heap of the run-time; those of libraries do not, since
  // they give them to the kernel at any time. `new` of single objects, and `delete`, are replaced
  // for all by the run-time itself.
  void renameAllocators() {
    static const std::pair<const char *, const char *> Names[] = {
        {"malloc", "malloc"}, {"calloc", "calloc"}, {"realloc", "realloc"}, {"free", "free"},
        {"cfree", "free"}, {"aligned_alloc", "aligned"}, {"memalign", "aligned"},
        {"posix_memalign", "posix_memalign"}, {"reallocarray", "reallocarray"},
        {"malloc_usable_size", "malloc_usable_size"}, {"strdup", "strdup"}, {"__strdup", "strdup"},
        {"strndup", "strndup"}, {"__strndup", "strndup"}, {"_Znam", "new_array"},
        {"_ZnamSt11align_val_t", "new_array_aligned"}, {"_ZnwmRKSt9nothrow_t", "new_nothrow"},
        {"_ZnamRKSt9nothrow_t", "new_nothrow"}};
    for (auto &[Name, Own] : Names) {
      Function *F = M.getFunction(Name);
      if (!F || !F->isDeclaration()) // a program with an allocator of its own keeps it
        continue;
      std::string NewName = std::string("ciel_heap_") + Own;
      if (Function *Known = M.getFunction(NewName))
        F->replaceAllUsesWith(ConstantExpr::getBitCast(Known, F->getType()));
      else
        F->setName(NewName);
    }
  }

  // --- full translation: where variables lie ---

  void moveGlobals() {
    for (GlobalVariable &G : M.globals()) {
      if (G.isDeclaration() || G.isConstant() || G.isThreadLocal() || G.hasSection() ||
          G.getAddressSpace() || startsWith(G.getName(), "llvm.") || G.hasCommonLinkage())
        continue;
      G.setSection(GlobalSection);
    }
  }

  // Let the variables of a function lie in a frame in pages, which ends with the function.
  void moveVariables(Function &F) {
    SmallVector<AllocaInst *> Fixed, Dynamic;
    for (Instruction &I : instructions(F))
      if (auto *A = dyn_cast<AllocaInst>(&I)) {
        if (A->isUsedWithInAlloca() || A->isSwiftError() || A->getAddressSpace()) {
          refuse(I, "a variable of this kind cannot lie in a store");
          return;
        }
        (A->isStaticAlloca() ? Fixed : Dynamic).push_back(A);
      }
    SmallVector<IntrinsicInst *> Stack;
    for (Instruction &I : instructions(F))
      if (auto *Call = dyn_cast<IntrinsicInst>(&I))
        if (Call->getIntrinsicID() == Intrinsic::stacksave || Call->getIntrinsicID() == Intrinsic::stackrestore)
          Stack.push_back(Call);
    if (Fixed.empty() && Dynamic.empty())
      return;

    FunctionCallee Enter = runtime("ciel_heap_enter", Pointer, {Int64, Int64});
    FunctionCallee Mark = runtime("ciel_heap_mark", Pointer, {});
    FunctionCallee Leave = runtime("ciel_heap_leave", Void, {Pointer});

    // `Top` is what the stack has to be again after an exception or a longjmp. It lies in the
    // native stack, and is volatile, since longjmp does not restore registers.
    IRBuilder<> B(&*F.getEntryBlock().getFirstInsertionPt());
    AllocaInst *Top = B.CreateAlloca(Pointer);
    Value *Before = B.CreateCall(Mark);
    AllocaInst *Saved = B.CreateAlloca(Pointer);
    B.CreateStore(Before, Saved, true);
    uint64_t Size = 0;
    Align Largest(16);
    for (AllocaInst *A : Fixed) {
      Size = alignTo(Size, A->getAlign()) + variableBytes(A);
      Largest = std::max(Largest, A->getAlign());
    }
    Value *Frame = B.CreateCall(Enter, {B.getInt64(Size), B.getInt64(Largest.value())});
    B.SetInsertPoint(B.CreateStore(B.CreateCall(Mark), Top, true)); // the old variables go away

    uint64_t Offset = 0;
    for (AllocaInst *A : Fixed) {
      Offset = alignTo(Offset, A->getAlign());
      uint64_t Bytes = variableBytes(A);
      replaceVariable(A, B.CreateConstGEP1_64(Int8, Frame, Offset));
      Offset += Bytes;
    }
    for (AllocaInst *A : Dynamic) {
      IRBuilder<> D(A);
      Value *Count = D.CreateZExtOrTrunc(A->getArraySize(), Int64);
      Value *Bytes = D.CreateMul(Count, D.getInt64(Layout.getTypeAllocSize(A->getAllocatedType())));
      Align Alignment = std::max(Align(16), A->getAlign());
      Value *Variable = D.CreateCall(Enter, {Bytes, D.getInt64(Alignment.value())});
      D.CreateStore(D.CreateCall(Mark), Top, true);
      replaceVariable(A, Variable);
    }
    for (IntrinsicInst *Call : Stack) {
      IRBuilder<> D(Call);
      if (Call->getIntrinsicID() == Intrinsic::stacksave) {
        Call->replaceAllUsesWith(D.CreateCall(Mark));
      } else {
        D.CreateCall(Leave, {Call->getArgOperand(0)});
        D.CreateStore(Call->getArgOperand(0), Top, true);
      }
      Call->eraseFromParent();
    }

    SmallVector<Instruction *> Ends, Returns;
    for (Instruction &I : instructions(F)) {
      if (isa<ReturnInst>(I) || isa<ResumeInst>(I)) {
        CallInst *Tail = I.getParent()->getTerminatingMustTailCall();
        Ends.push_back(Tail ? static_cast<Instruction *>(Tail) : &I);
      } else if (isa<LandingPadInst>(I)) {
        Returns.push_back(&*I.getParent()->getFirstInsertionPt());
      } else if (auto *Call = dyn_cast<CallInst>(&I)) {
        if (Call->hasFnAttr(Attribute::ReturnsTwice))
          Returns.push_back(Call->getNextNode());
        if (!Call->isMustTailCall())
          Call->setTailCallKind(CallInst::TCK_None); // variables end after the call, not before
      }
    }
    for (Instruction *I : Ends) {
      IRBuilder<> D(I);
      D.CreateCall(Leave, {D.CreateLoad(Pointer, Saved, true)});
    }
    for (Instruction *I : Returns) {
      IRBuilder<> D(I);
      D.CreateCall(Leave, {D.CreateLoad(Pointer, Top, true)});
    }
    Native.insert(Top);
    Native.insert(Saved);
  }

  SmallPtrSet<Value *, 8> Native; // variables that stay on the native stack

  uint64_t variableBytes(AllocaInst *A) {
    uint64_t Count = cast<ConstantInt>(A->getArraySize())->getZExtValue();
    return Count * Layout.getTypeAllocSize(A->getAllocatedType());
  }

  void replaceVariable(AllocaInst *A, Value *By) {
    SmallVector<Instruction *> Lifetimes;
    for (User *U : A->users())
      if (auto *I = dyn_cast<IntrinsicInst>(U))
        if (I->isLifetimeStartOrEnd())
          Lifetimes.push_back(I);
    for (Instruction *I : Lifetimes)
      I->eraseFromParent();
    A->replaceAllUsesWith(IRBuilder<>(A).CreateBitCast(By, A->getType()));
    A->eraseFromParent();
  }

  // --- checks ---

  // Whether an address lies where no page can be: on the native stack, or in globals that stay.
  bool isNative(Value *Address) {
    const Value *Object = getUnderlyingObject(Address, 12);
    if (isa<AllocaInst>(Object))
      return !IsFull || Native.contains(Object);
    if (auto *G = dyn_cast<GlobalVariable>(Object))
      return !IsFull || G->isConstant() || G->isThreadLocal();
    if (auto *A = dyn_cast<Argument>(Object))
      return A->hasByValAttr();
    return isa<Function>(Object) || isa<BlockAddress>(Object) || isa<ConstantPointerNull>(Object);
  }

  bool checkSpace(Instruction &I, Value *Address) {
    if (Address->getType()->getPointerAddressSpace() == 0)
      return true;
    refuse(I, "an access to another address space cannot be translated");
    return false;
  }

  void translate(Function &F) {
    refuseWhatCannotWork(F);
    if (IsFull)
      moveVariables(F);
    SmallVector<Instruction *> All;
    for (Instruction &I : instructions(F))
      All.push_back(&I);
    // What one block has checked need not be checked again there; by object, part of it, and kind.
    DenseMap<std::pair<Value *, int64_t>, bool> Checked;
    const BasicBlock *Block = nullptr;
    SmallVector<std::pair<Instruction *, Access>> Wanted;
    SmallVector<MemIntrinsic *> Copies;
    auto Want = [&](Instruction *I, Value *Address, bool IsWrite) {
      if (isNative(Address))
        return;
      int64_t Offset = 0;
      Value *Base = GetPointerBaseWithConstantOffset(Address, Offset, Layout);
      auto [At, IsNew] = Checked.try_emplace({Base, Offset >> 8}, IsWrite);
      if (!IsNew && (At->second || !IsWrite))
        return;
      At->second = IsWrite;
      Wanted.push_back({I, {Address, IsWrite}});
    };
    for (Instruction *I : All) {
      if (I->getParent() != Block) {
        Block = I->getParent();
        Checked.clear();
      }
      if (auto *Load = dyn_cast<LoadInst>(I)) {
        if (checkSpace(*I, Load->getPointerOperand()))
          Want(I, Load->getPointerOperand(), false);
      } else if (auto *Store = dyn_cast<StoreInst>(I)) {
        if (checkSpace(*I, Store->getPointerOperand()))
          Want(I, Store->getPointerOperand(), true);
      } else if (auto *Change = dyn_cast<AtomicRMWInst>(I)) {
        if (checkSpace(*I, Change->getPointerOperand()))
          Want(I, Change->getPointerOperand(), true);
      } else if (auto *Exchange = dyn_cast<AtomicCmpXchgInst>(I)) {
        if (checkSpace(*I, Exchange->getPointerOperand()))
          Want(I, Exchange->getPointerOperand(), true);
      } else if (auto *Copy = dyn_cast<MemIntrinsic>(I)) {
        Copies.push_back(Copy);
      } else if (auto *Call = dyn_cast<CallBase>(I)) {
        wantArguments(*Call, Want);
        Checked.clear(); // pages may leave meanwhile
      }
    }
    for (MemIntrinsic *Copy : Copies)
      translateCopy(*Copy, Wanted);
    for (auto &[I, What] : Wanted)
      check(I, What);
  }

  // Functions of libraries use pages without checks, and may hand them to the kernel, which gets an
  // error for an absent one. So the first bytes of each argument are made ready: a path, a struct.
  // What has a size (a buffer to read into) is pinned by the run-time (calls.c). Functions of this
  // module check themselves.
  template <typename T> void wantArguments(CallBase &Call, T &Want) {
    Function *Callee = Call.getCalledFunction();
    if (Call.isInlineAsm() || !Callee || !Callee->isDeclaration())
      return;
    StringRef Name = Callee->getName();
    if (startsWith(Name, "ciel_heap_"))
      return;
    if (Callee->isIntrinsic()) {
      auto ID = Callee->getIntrinsicID();
      if (ID == Intrinsic::masked_load)
        Want(&Call, Call.getArgOperand(0), false);
      if (ID == Intrinsic::masked_store)
        Want(&Call, Call.getArgOperand(1), true);
      return;
    }
    for (Use &Argument : Call.args()) {
      if (!Argument->getType()->isPointerTy() || Argument->getType()->getPointerAddressSpace() ||
          isNative(Argument))
        continue;
      bool IsWrite = !Call.onlyReadsMemory(Call.getArgOperandNo(&Argument));
      Want(&Call, Argument, IsWrite);
      Want(&Call, IRBuilder<>(&Call).CreateConstGEP1_64(Int8, Argument, ReadyBytes - 1), IsWrite);
    }
  }

  void translateCopy(MemIntrinsic &Copy, SmallVectorImpl<std::pair<Instruction *, Access>> &Wanted) {
    auto *Transfer = dyn_cast<MemTransferInst>(&Copy);
    bool ToNative = isNative(Copy.getRawDest());
    bool FromNative = !Transfer || isNative(Transfer->getRawSource());
    if (ToNative && FromNative)
      return;
    auto *Length = dyn_cast<ConstantInt>(Copy.getLength());
    bool IsSmall = Length && Length->getZExtValue() <= InlineBytes;
    if (IsSmall || Copy.isVolatile() || isa<MemCpyInlineInst>(Copy) || isa<MemSetInlineInst>(Copy)) {
      if (!ToNative)
        Wanted.push_back({&Copy, {Copy.getRawDest(), true}});
      if (!FromNative)
        Wanted.push_back({&Copy, {Transfer->getRawSource(), false}});
      return;
    }
    IRBuilder<> B(&Copy);
    Value *Size = B.CreateZExtOrTrunc(Copy.getLength(), Int64);
    if (Transfer) {
      StringRef Name = isa<MemCpyInst>(Copy) ? "ciel_heap_memcpy" : "ciel_heap_memmove";
      B.CreateCall(runtime(Name, Pointer, {Pointer, Pointer, Int64}),
                   {Copy.getRawDest(), Transfer->getRawSource(), Size});
    } else {
      Value *Byte = B.CreateZExt(cast<MemSetInst>(Copy).getValue(), B.getInt32Ty());
      B.CreateCall(runtime("ciel_heap_memset", Pointer, {Pointer, B.getInt32Ty(), Int64}),
                   {Copy.getRawDest(), Byte, Size});
    }
    Copy.eraseFromParent();
  }

  // Put this before an access: if the table has something for the address's granule, call.
  void check(Instruction *I, const Access &What) {
    if (isa<PHINode>(I) || I->isEHPad())
      return;
    IRBuilder<> B(I);
    Value *Granule = B.CreateLShr(B.CreatePtrToInt(What.Pointer, Int64), GranuleShift);
    Value *Place = B.CreateIntToPtr(B.CreateAdd(Granule, B.getInt64(Table)), Pointer);
    LoadInst *Entry = B.CreateLoad(Int8, Place);
    Value *Asks = What.IsWrite ? static_cast<Value *>(Entry) : B.CreateAnd(Entry, B.getInt8(Cold));
    Value *IsSet = B.CreateICmpNE(Asks, B.getInt8(0));
    MDNode *Rarely = MDBuilder(M.getContext()).createBranchWeights(1, 100000);
    Instruction *Then = SplitBlockAndInsertIfThen(IsSet, I, false, Rarely);
    StringRef Name = What.IsWrite ? "ciel_heap_check_write" : "ciel_heap_check_read";
    FunctionCallee Callee = runtime(Name, Void, {Pointer});
    if (auto *F = dyn_cast<Function>(Callee.getCallee())) {
      F->setCallingConv(CallingConv::PreserveMost);
      F->addFnAttr(Attribute::Cold);
      F->addFnAttr(Attribute::NoUnwind);
    }
    CallInst *Call = IRBuilder<>(Then).CreateCall(Callee, {What.Pointer});
    Call->setCallingConv(CallingConv::PreserveMost);
    Call->setDebugLoc(I->getDebugLoc());
  }

  // --- what cannot be translated ---

  void refuseWhatCannotWork(Function &F) {
    static const StringSet<> OwnStacks = {"makecontext", "swapcontext", "setcontext", "getcontext", "vfork"};
    for (Instruction &I : instructions(F)) {
      auto *Call = dyn_cast<CallBase>(&I);
      if (!Call)
        continue;
      if (auto *Assembly = dyn_cast<InlineAsm>(Call->getCalledOperand())) {
        StringRef Text = Assembly->getAsmString();
        for (StringRef Way : {"syscall", "sysenter", "int $$0x80", "int $0x80"})
          if (Text.contains(Way))
            refuse(I, "assembler code calls the kernel, which cannot wait for pages; use libc");
        continue;
      }
      Function *Callee = Call->getCalledFunction();
      if (!Callee)
        continue;
      StringRef Name = Callee->getName();
      if (Name == "clone" || Name == "clone3")
        refuse(I, "a process by " + Name + "() would share pages without knowing it; use pthreads or posix_spawn()");
      if (IsFull && OwnStacks.contains(Name))
        refuse(I, Name + "() changes stacks, which lie in the store");
      if (startsWith(Name, "llvm.coro.") || startsWith(Name, "llvm.localescape") || startsWith(Name, "llvm.gcroot"))
        refuse(I, "this use of the stack cannot be translated: " + Name);
    }
  }
};

struct HeapPass : PassInfoMixin<HeapPass> {
  PreservedAnalyses run(Module &M, ModuleAnalysisManager &) {
    const char *Memory = std::getenv("CIEL_CC_MEMORY");
    if (!Memory || M.getNamedMetadata("ciel.heap")) // an optimised module may come a second time
      return PreservedAnalyses::all();
    M.getOrInsertNamedMetadata("ciel.heap");
    Translation(M, StringRef(Memory) == "full").run();
    return PreservedAnalyses::none();
  }
  static bool isRequired() { return true; } // also without optimisations
};

} // namespace

extern "C" __attribute__((visibility("default"))) PassPluginLibraryInfo llvmGetPassPluginInfo() {
  return {LLVM_PLUGIN_API_VERSION, "ciel-heap", "1", [](PassBuilder &Builder) {
            Builder.registerOptimizerLastEPCallback([](ModulePassManager &Manager, auto &&...) {
              Manager.addPass(HeapPass());
            });
          }};
}
